"""Planning for the CPU: the interpreter runs the program in NumPy, any schedule, any head dim, float32 too."""

from collections.abc import Iterator
from math import gcd

from flashgen.errors import PlanError
from flashgen.expr import KeyRanges
from flashgen.plan import shares
from flashgen.plan.kernel import DealingPlan, Grid, PipelinePlan, SmemPlan, TilePlan, WorkersPlan
from flashgen.plan.program import Parts
from flashgen.plan.strategy import Draft, Problem, Request, Strategy, Tried

BLOCK = 128  # rows and keys, where the spec pins none


class Host(Strategy):
    """Everything, on the CPU; lazy is a branch a row, which costs NumPy more than it saves."""

    skeleton = "interpreter"
    engine = "numpy"

    def serves(self, request: Request) -> str | None:
        """Refuses GPUs."""
        return None if self.engine in request.arch.engines else f"{request.arch.name} is a GPU"

    def check(self, problem: Problem) -> None:
        """Raises PlanError for head dims below 1."""
        for label, d in (("qk", problem.spec.head_dim.qk), ("v", problem.spec.head_dim.v)):
            if d < 1:
                raise PlanError(f"head_dim {label} is {d}: at least 1")

    def drafts(self, problem: Problem) -> Iterator[Draft]:
        """The pinned tile, or the usual one."""
        spec = problem.spec
        blocks = spec.blocks
        of_lists = (blocks.m, BLOCK if blocks.by_key else blocks.n) if blocks else (BLOCK, BLOCK)
        m, n = (gcd(BLOCK, of) if size is None else size for size, of in zip((spec.block.m, spec.block.n), of_lists, strict=True))
        stages, warps = (1 if count is None else count for count in (spec.stages, spec.warps))
        tile = TilePlan(
            block_m=m,
            block_n=n,
            qk_columns=spec.head_dim.qk,
            v_columns=spec.head_dim.v,
            qk_stored=spec.head_dim.qk,
            v_stored=spec.head_dim.v,
        )
        yield Draft(
            tile=tile,
            workers=WorkersPlan(warps),
            pipeline=PipelinePlan(stages),
            smem=SmemPlan(capacity=problem.arch.shared_bytes),
            dealing=shares.dealt(problem, tile, DealingPlan()),
        )

    def objection(self, problem: Problem, draft: Draft) -> str | None:
        """Sizes below one."""
        tile, stages, warps = draft.tile, draft.pipeline.stages, draft.workers.warps
        sizes = {"block m": tile.block_m, "block n": tile.block_n, "stages": stages, "warps": warps}
        return next((f"{name} is {size}: at least 1" for name, size in sizes.items() if size < 1), None)

    def cost(self, problem: Problem, draft: Draft) -> dict[str, float]:
        """Products and exponentials follow each other."""
        tile, arch = draft.tile, problem.arch
        pairs = tile.block_m * tile.block_n
        step = {"products": 2 * pairs * (tile.qk_columns + tile.v_columns) / arch.mma_flops, "exponentials": pairs / arch.exp2}
        clocks = sum(step.values())
        return {**step, "step": clocks, "total": clocks / tile.block_m}

    def parts(self, problem: Problem, draft: Draft, ranges: KeyRanges) -> Parts:
        """One kernel that the interpreter reads; nothing is launched, so it takes no arguments."""
        return Parts((draft.attention("forward", Grid(0, ()), ranges),), ())

    def reasons(self, problem: Problem, draft: Draft, tried: Tried) -> Iterator[tuple[str, str]]:
        """The reason for shares of keys."""
        yield from shares.reasons(draft.dealing)
