"""Planning for standard attention: scores and probabilities in global memory, three kernels with the tiles and warps of mma_sync."""

from collections.abc import Iterator
from dataclasses import replace

from flashgen.expr import KeyRanges
from flashgen.plan.algorithms.passes import Passes
from flashgen.plan.engines import limits
from flashgen.plan.engines.mma_sync import MmaSync, native_arguments, with_blocks
from flashgen.plan.kernel import Attention, DealingPlan, Grid, Kernel, SmemPlan
from flashgen.plan.kernels.arguments import query_tiles
from flashgen.plan.program import Argument, Parts, Scratch
from flashgen.plan.smem import lay_out
from flashgen.plan.strategy import Draft, Problem, Request

# Keys at most of a block of scores, which loads q once for them. With twice as many an H200 is 7 % faster at 1k (head dim 64, 16 heads) and
# 15 % slower at 512, for want of blocks.
SPAN = 256
REGIONS = {"scores": ("Q", "K"), "output": ("P", "V", "O")}  # by kernel, in shared memory: never at once, so each from its first byte on


class Standard(Passes):
    """Scores and probabilities in memory; the maximum of a row is known before its exponentials."""

    skeleton = "standard_sm80"

    def serves(self, request: Request) -> str | None:
        """Refuses other schedules than standard attention."""
        return limits.unserved(request, engine=self.engine, operand="native", algorithm="standard")

    def drafts(self, problem: Problem) -> Iterator[Draft]:
        """Tiles and warps of mma_sync, two stages; q stays in shared memory."""
        for draft in MmaSync.drafts(self, problem.with_stages(2)):
            if not draft.pipeline.query_in_registers:
                yield with_blocks(problem, replace(draft, smem=_smem(problem, draft), dealing=DealingPlan()))

    def cost(self, problem: Problem, draft: Draft) -> dict[str, float]:
        """Clocks as of mma.sync: all candidates read and write the same scores."""
        return MmaSync.cost(self, problem, draft)

    def parts(self, problem: Problem, draft: Draft, ranges: KeyRanges) -> Parts:
        """A block a run of key tiles of s, a warp two rows of p, a block a tile of o."""
        spec, tile, threads = problem.spec, draft.tile, draft.workers.threads
        arguments = native_arguments(
            spec,
            Argument("s", "float*", "pointer", "scratch s", comment="[B, Hq, rows of whole tiles, columns of whole tiles]"),
            Argument("p", f"{spec.element.cuda}*", "pointer", "scratch p", comment="like s"),
        )
        pairs = (("q_len", tile.block_m), tile.block_m, ("kv_len", tile.block_n), tile.block_n)
        scratch = tuple(Scratch(f"scratch {x}", dtype, ("batch", "heads", *pairs)) for x, dtype in (("s", "float32"), ("p", spec.dtype)))
        kernels = (
            _holding(draft, "scores", Grid(threads, (*query_tiles(spec, tile), ("kv_len", span(tile.block_n)))), ranges),
            Kernel("probabilities", Grid(threads, (("q_len", 2 * draft.workers.warps), "heads", "batch"))),
            _holding(draft, "output", Grid(threads, query_tiles(spec, tile)), ranges),
        )
        return Parts(kernels, arguments, scratch)


def _smem(problem: Problem, draft: Draft) -> SmemPlan | str:
    """q and keys for s; p and values for o, which leaves from their place."""
    m, n, stages, size = draft.tile.block_m, draft.tile.block_n, draft.pipeline.stages, problem.spec.element.bytes
    qk, v = draft.tile.qk_columns * size, draft.tile.v_columns * size
    multiplied = [("Q", "Q", m * qk, 1, 128), ("K", "K", n * qk, stages, 128)]
    weighted = [("P", "P", m * n * size, stages, 128), ("V", "V", n * v, stages, 128)]
    return lay_out(multiplied, [], problem.arch.shared_bytes, [weighted, [("O", "O", m * v, 1, 128)]])


def _holding(draft: Draft, entry: str, grid: Grid, ranges: KeyRanges) -> Attention:
    """A kernel with the part of a draft's shared memory that it needs."""
    kernel = draft.attention(entry, grid, ranges)
    own = tuple(region for region in kernel.smem.regions if region.symbol in REGIONS[entry])
    return replace(kernel, smem=replace(kernel.smem, regions=own, bytes=max(region.end for region in own)))


def span(block_n: int) -> int:
    """Keys of a block of scores: whole tiles, one at least.

    >>> span(96)
    192
    """
    return max(1, SPAN // block_n) * block_n
