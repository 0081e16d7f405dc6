"""Planning float32 for sm_80 and later where planes are not made: packed sequences and keys in pages, by multiply-adds."""

from collections.abc import Iterator
from itertools import product

from flashgen.expr import KeyRanges
from flashgen.plan.engines import limits
from flashgen.plan.engines.limits import MULTIPLY_ADDS, up
from flashgen.plan.engines.mma_sync import MAX_WARPS, choices, native_arguments
from flashgen.plan.kernel import DealingPlan, Grid, PipelinePlan, TilePlan, WorkersPlan
from flashgen.plan.kernels.arguments import query_tiles
from flashgen.plan.kernels.plain import plain_smem
from flashgen.plan.operands.planes_mma_sync import QK_PART, V_PARTS
from flashgen.plan.operands.planes_strategy import PlanesStrategy
from flashgen.plan.program import Parts
from flashgen.plan.strategy import Draft, Problem, Request, Tried

KEYS = (32, 64)  # of usual tiles


class PlainMmaSync(PlanesStrategy):
    """float32 operands that stay as they are, online, in arrays of any strides."""

    skeleton = "forward_plain_sm80"
    engine = "mma_sync"

    def serves(self, request: Request) -> str | None:
        """Refuses what planes serve, and what is not float32."""
        if not (request.spec.geometry.packed or request.spec.page):
            return "it takes packed sequences and keys in pages, where planes are not made"
        return limits.unserved(request, engine=self.engine, operand="planes", algorithm="online", anywhere=True)

    def drafts(self, problem: Problem) -> Iterator[Draft]:
        """Tiles."""
        spec = problem.spec
        rows = choices(spec.block.m, (32, 64) if spec.warps is None else (16 * spec.warps,))
        for block_m, block_n in product(rows, choices(spec.block.n, KEYS)):
            yield _draft(problem, block_m, block_n)

    def objection(self, problem: Problem, draft: Draft) -> str | None:
        """Sizes of tiles, and shared memory."""
        tile = draft.tile
        if tile.block_m % 16 or not 16 <= tile.block_m <= 16 * MAX_WARPS:
            return f"block m is {tile.block_m}: 1 to {MAX_WARPS} warps take 16 query rows each, so a multiple of 16 up to {16 * MAX_WARPS}"
        if tile.block_n % 16 or not 16 <= tile.block_n <= KEYS[-1]:
            return f"block n is {tile.block_n}: a multiple of 16 up to {KEYS[-1]}"
        return self.plain_objection(problem, draft)

    def cost(self, problem: Problem, draft: Draft) -> dict[str, float]:
        """Multiply-adds at the rate of a multiprocessor."""
        tile = draft.tile
        step = {"multiply-adds": tile.block_m * tile.block_n * (tile.qk_columns + tile.v_columns) / MULTIPLY_ADDS}
        clocks = step["multiply-adds"]
        return {**step, "step": clocks, "total": (problem.seen.key_tiles(tile.block_m, tile.block_n) + 1) * clocks / tile.block_m}

    def parts(self, problem: Problem, draft: Draft, ranges: KeyRanges) -> Parts:
        """A block a query tile."""
        grid = Grid(draft.workers.threads, query_tiles(problem.spec, draft.tile))
        return Parts((draft.attention("forward", grid, ranges),), native_arguments(problem.spec))

    def reasons(self, problem: Problem, draft: Draft, tried: Tried) -> Iterator[tuple[str, str]]:
        """The reason for multiply-adds."""
        yield "precision", "float32 by multiply-adds, slowly: planes are made of keys in arrays of their own alone"


def _draft(problem: Problem, block_m: int, block_n: int) -> Draft:
    step, dims = problem.spec.element.k_step, problem.spec.head_dim
    qk, v = up(dims.qk, step), up(dims.v, step)
    tile = TilePlan(
        block_m=block_m,
        block_n=block_n,
        qk_columns=qk,
        v_columns=v,
        qk_stored=qk,
        v_stored=v,
        qk_part=QK_PART,
        v_part=next(n for n in V_PARTS if v % n == 0),
    )
    smem = plain_smem(problem.spec, tile)
    return Draft(
        tile=tile,
        workers=WorkersPlan(max(1, block_m // 16)),
        pipeline=PipelinePlan(stages=1, copy_bytes=problem.copy_bytes),
        smem=smem if smem.bytes <= problem.arch.shared_bytes else f"{smem.bytes} bytes of shared memory of {problem.arch.shared_bytes}",
        dealing=DealingPlan(longest_first=not problem.seen.uniform),
    )
