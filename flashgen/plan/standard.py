"""Planning for standard attention: scores and probabilities in global memory, three kernels with the tiles and warps of sm80."""

from collections.abc import Iterator
from dataclasses import replace

from flashgen.plan import sm80
from flashgen.plan.arguments import further_arguments, query_tiles, row_arguments
from flashgen.plan.limits import check
from flashgen.plan.model import Argument, KernelPlan, LaunchPlan, Region, Scratch, SmemPlan
from flashgen.plan.passes import objection
from flashgen.plan.search import NEVER, Draft, Problem
from flashgen.plan.sm80 import cost
from flashgen.plan.smem import lay_out
from flashgen.spec import Spec

__all__ = ["APART", "LAZY_FROM", "SHORTEST", "SKELETON", "check", "cost", "drafts", "launch", "objection"]

SKELETON = "standard_sm80"
LAZY_FROM = NEVER  # the maximum of a row is known before its exponentials
APART = False
SHORTEST = 1024

# Keys at most of a block of scores, which loads q once for them. With twice as many an H200 is 7 % faster at 1k (head dim 64, 16 heads) and
# 15 % slower at 512, for want of blocks.
RUN = 256
HELD = {"scores": ("Q", "K"), "output": ("P", "V", "O")}  # by kernel, in shared memory: never at once, so each from its first byte on


def drafts(problem: Problem) -> Iterator[Draft]:
    """Tiles and warps of sm80, two stages; q stays in shared memory."""
    two = replace(problem, spec=Spec(**(problem.spec.to_json() | {"stages": problem.spec.stages or 2})))
    for draft in sm80.drafts(two):
        if not draft.pipeline.query_in_registers:
            yield sm80.with_blocks(problem, replace(draft, smem=_smem(problem, draft)))


def _smem(problem: Problem, draft: Draft) -> SmemPlan | str:
    """q and keys for s; p and values for o, which leaves from their place."""
    m, n, qk, v, stages = draft.tile.block_m, draft.tile.block_n, draft.tile.qk_columns, draft.tile.v_columns, draft.pipeline.stages
    multiplied = [("Q", "Q", 2 * m * qk, 1, 128), ("K", "K", 2 * n * qk, stages, 128)]
    weighted = [("P", "P", 2 * m * n, stages, 128), ("V", "V", 2 * n * v, stages, 128)]
    return lay_out(multiplied, [], problem.arch.shared_bytes, [weighted, [("O", "O", 2 * m * v, 1, 128)]])


def run(block_n: int) -> int:
    """Keys of a block of scores: whole tiles, one at least.

    >>> run(96)
    192
    """
    return max(1, RUN // block_n) * block_n


def held(smem: SmemPlan, entry: str) -> tuple[Region, ...]:
    """What a kernel has in shared memory."""
    return tuple(region for region in smem.regions if region.symbol in HELD[entry])


def launch(problem: Problem, draft: Draft) -> LaunchPlan:
    """A block a run of key tiles of s, a warp two rows of p, a block a tile of o."""
    spec, tile, threads = problem.spec, draft.tile, 32 * draft.pipeline.warps
    assert isinstance(draft.smem, SmemPlan)
    arguments = (
        *(Argument(x, "const u16*", "pointer", x) for x in ("q", "k", "v")),
        Argument("o", f"{spec.out_element.cuda}*", "pointer", "o"),
        *row_arguments(spec),
        Argument("s", "float*", "pointer", "scratch s", comment="[B, Hq, rows of whole tiles, columns of whole tiles]"),
        Argument("p", "u16*", "pointer", "scratch p", comment="like s"),
        *(Argument(f"{x}_strides", "Strides", "strides", x) for x in ("q", "k", "v", "o")),
        *further_arguments(spec),
    )
    pairs = (("q_len", tile.block_m), tile.block_m, ("kv_len", tile.block_n), tile.block_n)
    scratch = tuple(Scratch(f"scratch {x}", dtype, ("batch", "heads", *pairs)) for x, dtype in (("s", "float32"), ("p", spec.dtype)))
    scores, output = (max(region.end for region in held(draft.smem, entry)) for entry in HELD)
    kernels = (
        KernelPlan("scores", threads, scores, (*query_tiles(tile), ("kv_len", run(tile.block_n)))),
        KernelPlan("probabilities", threads, 0, (("q_len", 2 * draft.pipeline.warps), "heads", "batch")),
        KernelPlan("output", threads, output, query_tiles(tile)),
    )
    return LaunchPlan(kernels, False, False, arguments, scratch)
