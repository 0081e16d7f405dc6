"""Planning for the CPU: the interpreter runs the plan in NumPy, any schedule, any head dim, float32 too."""

from collections.abc import Iterator

from flashgen.errors import PlanError
from flashgen.plan.model import LaunchPlan, PipelinePlan, SmemPlan, TilePlan
from flashgen.plan.search import NEVER, Draft, Problem

SKELETON = "interpreter"
LAZY_FROM = NEVER  # a branch a row costs NumPy more than it saves
APART = False
SHORTEST = 1024

BLOCK = 128  # rows and keys, where the spec pins none


def check(problem: Problem) -> None:
    """Head dims of at least one column."""
    for label, d in (("qk", problem.spec.head_dim.qk), ("v", problem.spec.head_dim.v)):
        if d < 1:
            raise PlanError(f"head_dim {label} is {d}: at least 1")


def drafts(problem: Problem) -> Iterator[Draft]:
    """The pinned tile, or the usual one."""
    spec = problem.spec
    m, n = (BLOCK if size is None else size for size in (spec.block.m, spec.block.n))
    stages, warps = (1 if count is None else count for count in (spec.stages, spec.warps))
    tile = TilePlan(m, n, spec.head_dim.qk, spec.head_dim.v, spec.head_dim.qk, spec.head_dim.v)
    yield Draft(tile, PipelinePlan(stages, warps), SmemPlan((), 0, problem.arch.shared_bytes))


def objection(problem: Problem, draft: Draft) -> str | None:  # noqa: ARG001
    """Sizes below one."""
    tile, pipe = draft.tile, draft.pipeline
    sizes = {"block m": tile.block_m, "block n": tile.block_n, "stages": pipe.stages, "warps": pipe.warps}
    return next((f"{name} is {size}: at least 1" for name, size in sizes.items() if size < 1), None)


def cost(problem: Problem, draft: Draft) -> dict[str, float]:
    """Products and exponentials follow each other."""
    tile, arch = draft.tile, problem.arch
    pairs = tile.block_m * tile.block_n
    step = {"products": 2 * pairs * (tile.qk_columns + tile.v_columns) / arch.mma_flops, "exponentials": pairs / arch.exp2}
    clocks = sum(step.values())
    return {**step, "step": clocks, "total": clocks / tile.block_m}


def launch(problem: Problem, draft: Draft) -> LaunchPlan:  # noqa: ARG001
    """Nothing is launched."""
    return LaunchPlan((), dealt=False, longest_first=False, arguments=())
