"""Planning float32 for sm_80 and later: planes multiplied by mma.sync; a block takes one query tile, a warp 16 rows of it."""

from collections.abc import Iterator
from itertools import product

from flashgen.plan.costs import model as costs
from flashgen.plan.engines import limits
from flashgen.plan.engines.limits import FRAGMENT_ROWS, LOADED_NUMBERS, PRODUCT_NUMBERS, SCHEDULERS, SHARED_BYTES, TILE_ROWS, up
from flashgen.plan.engines.mma_sync import MAX_STAGES, MAX_WARPS, PRODUCT_FLOPS, choices, with_blocks
from flashgen.plan.kernel import DealingPlan, PipelinePlan, TilePlan, WorkersPlan
from flashgen.plan.operands.planes import PLANE_BYTES, PLANES
from flashgen.plan.operands.planes_strategy import PlanesStrategy
from flashgen.plan.smem import lay_out
from flashgen.plan.strategy import Draft, Problem, Request

MAX_KEYS = 128
KEYS = (32, 48, 64)  # of usual tiles
WEIGHT_REGISTERS = 16  # of what weights of keys are read from, and the unit of a row that they change
FRAGMENTS = 185  # registers a thread of q, s, p, o and sums of products, beyond which too much spills
QK_PART = 64  # columns of q and k that one sum of a score covers
V_PARTS = (32, 16)  # columns of v that one product gives, the first that divides them


class PlanesMmaSync(PlanesStrategy):
    """float32 operands, online, in arrays of any strides."""

    skeleton = "forward_sm80_split"
    engine = "mma_sync"
    costs = "planes_mma_sync"

    def serves(self, request: Request) -> str | None:
        """Refuses what is not float32, or not for mma.sync."""
        return limits.unserved(request, engine=self.engine, operand="planes")

    def drafts(self, problem: Problem) -> Iterator[Draft]:
        """Tiles, stages, and whether q stays in registers."""
        spec = problem.spec
        rows = choices(spec.block.m, (32, 64, 128) if spec.warps is None else (16 * spec.warps,))
        keys = choices(spec.block.n, KEYS)
        stages = choices(spec.stages, (1, 2, 3))
        for block_m, block_n, n, kept in product(rows, keys, stages, (True, False)):
            yield _draft(problem, (block_m, block_n), stages=n, kept=kept)

    def objection(self, problem: Problem, draft: Draft) -> str | None:
        """Sizes of products, warps, stages, registers, and the memory of the plain kernel."""
        tile, pipe, spec = draft.tile, draft.pipeline, problem.spec
        if tile.block_m % 16 or not 16 <= tile.block_m <= 16 * MAX_WARPS:
            return f"block m is {tile.block_m}: 1 to {MAX_WARPS} warps take 16 query rows each, so a multiple of 16 up to {16 * MAX_WARPS}"
        if tile.block_n % 16 or not 16 <= tile.block_n <= MAX_KEYS:
            return f"block n is {tile.block_n}: a product takes 16 keys, so a multiple of 16 up to {MAX_KEYS}"
        if not 1 <= pipe.stages <= MAX_STAGES:
            return f"stages is {pipe.stages}: 1 to {MAX_STAGES}"
        if spec.warps is not None and spec.warps * 16 != tile.block_m:
            return f"warps is {spec.warps}: a warp computes 16 query rows, so {tile.block_m // 16} for block m = {tile.block_m}"
        if reason := self.plain_objection(problem, draft):
            return reason
        held = _held(problem, draft)
        more = _more(problem, tile)
        narrowest = tile.block_n == KEYS[0] and not pipe.query_in_registers  # there is none that takes less: sums besides l may spill
        if held > FRAGMENTS + (more if narrowest else 0):
            return f"q, s, p, o and sums of products take {held} registers a thread, {FRAGMENTS} can be held"
        return None

    def cost(self, problem: Problem, draft: Draft) -> dict[str, float]:
        """Roofline of a key step, and what surrounds it."""
        tile, pipe, arch = draft.tile, draft.pipeline, problem.arch
        split, known = PLANES[problem.spec.precision], costs.of_arch(arch, self.costs)
        m, n, columns, blocks = tile.block_m, tile.block_n, tile.qk_columns + tile.v_columns, draft.workers.blocks
        mma_flops, score = min(arch.mma_flops, known["mma_flops"]), problem.holes.element
        query = 0 if pipe.query_in_registers else tile.qk_columns
        products = n * columns / PRODUCT_NUMBERS * len(split.products)  # instructions of a warp
        element = known["softmax"] + known["plane"] * split.count + score.floats
        others = split.count * (n * columns / LOADED_NUMBERS + query / FRAGMENT_ROWS) + n / 2 * element + 2 * tile.v_columns + known["loop"]
        others += known["spilled"] * max(0, _held(problem, draft) - known["unspilled"])
        one_warp = products * PRODUCT_FLOPS / mma_flops + others * known["lone_warp"]
        one_warp += known["load_latency"] if pipe.stages == 1 else 0
        step = {
            "tensor cores": 2 * m * n * columns * len(split.products) / mma_flops,
            "special functions": m * n * (problem.softmax.exponentials + score.special) / arch.exp2,
            "instructions": (products + others) * draft.workers.warps / SCHEDULERS,
            "shared memory": ((draft.workers.warps + 1) * n * columns + m * query) * PLANE_BYTES * split.count / SHARED_BYTES,
            "one warp": one_warp / blocks,  # its products and exponentials follow each other
        }
        clocks = max(step.values()) + known["step"] / blocks
        total = (problem.seen.key_tiles(m, n) + 1 / blocks) * clocks + known["query_tile"] * m / TILE_ROWS / blocks
        return {**step, "step": clocks, "total": total * up(problem.seen.length, m) / problem.seen.length / m}


def _draft(problem: Problem, block: tuple[int, int], *, stages: int, kept: bool) -> Draft:
    block_m, block_n = block
    qk, step = problem.spec.head_dim.qk, problem.spec.element.k_step
    v = up(problem.spec.head_dim.v, step)
    v_part = next(n for n in V_PARTS if v % n == 0)
    tile = TilePlan(
        block_m=block_m,
        block_n=block_n,
        qk_columns=up(qk, step),
        v_columns=v,
        qk_stored=up(qk, 64),
        v_stored=up(v, 64),
        qk_part=QK_PART,
        v_part=v_part,
    )
    count = PLANES[problem.spec.precision].count
    pieces = [
        ("Q", "Q", count * block_m * tile.qk_stored * PLANE_BYTES, 1, 1024),
        ("K", "K", count * block_n * tile.qk_stored * PLANE_BYTES, stages, 1024),
        ("V", "V", count * block_n * tile.v_stored * PLANE_BYTES, stages, 1024),
    ]
    draft = Draft(
        tile=tile,
        workers=WorkersPlan(max(1, block_m // 16)),
        pipeline=PipelinePlan(stages=stages, query_in_registers=kept, copy_bytes=problem.copy_bytes),
        smem=lay_out(pieces, [], problem.arch.shared_bytes),
        dealing=DealingPlan(longest_first=not problem.seen.uniform),
    )
    return with_blocks(problem, draft)


def _held(problem: Problem, draft: Draft) -> int:
    """Registers a thread of q, s, p, o and sums of products, at their most."""
    tile, count, kept = draft.tile, PLANES[problem.spec.precision].count, draft.pipeline.query_in_registers
    q = count * (tile.qk_columns // 4 if kept else 4)
    scores = q + (1 + count) * tile.block_n // 2
    output = (q if kept else 0) + count * (tile.block_n // 4 + tile.v_part // 2)
    return tile.v_columns // 2 + _more(problem, tile) + max(scores, output)


def _more(problem: Problem, tile: TilePlan) -> int:
    """Registers a thread of what few specs ask for: sums besides l, and weights of keys."""
    return problem.holes.outputs.registers(tile.block_n, tile.v_columns) + (WEIGHT_REGISTERS if problem.holes.weight else 0)
