"""Planning the backward for wgmma where registers of one block do not hold dk and dv: two blocks of a cluster share a key tile.

One has s, p and dv, the other dp, ds and dk, and each half of the columns of dq. p and ds cross the cluster a step ahead of their products.
"""

from collections.abc import Iterator
from dataclasses import replace

from flashgen.expr.language.nodes import Name, walk
from flashgen.expr.meaning.gradient import ONE, S, derivatives
from flashgen.plan.algorithms.backward_wgmma import KEYS, MOST, arrays, elements, further_barriers, others, shared_heads, unlisted
from flashgen.plan.backward_kernel import WarpgroupsPlan
from flashgen.plan.costs import model as costs
from flashgen.plan.engines import limits
from flashgen.plan.engines.limits import FLOAT_BYTES, SHARED_BYTES, up
from flashgen.plan.kernel import ROW_BYTES, DealingPlan, Grid, PipelinePlan, TilePlan, WorkersPlan
from flashgen.plan.kernels.arguments import key_tiles
from flashgen.plan.kernels.delta import delta
from flashgen.plan.kernels.finish_keys import finish_keys
from flashgen.plan.kernels.finish_queries import finish_queries
from flashgen.plan.program import Parts
from flashgen.plan.smem import lay_out
from flashgen.plan.strategy import BackwardStrategy, Draft, Problem, Request
from flashgen.spec import Spec

BLOCKS = 2  # of a cluster
QUERIES = range(32, 97, 16)  # of tiles
STAGES, STEPS, BUFFERS = 4, 4, 2  # for tiles of q and do; steps that the loading warp is ahead; of ds
FRAGMENTS = 224  # registers a thread that a gradient, s, dq and two operands can have before the compiler spills
COMPUTE_REGISTERS, LOAD_REGISTERS = 240, 24


class BackwardWgmmaPair(BackwardStrategy):
    """16-bit operands in arrays that tensor maps take, head dims from 128 to 256."""

    skeleton = "backward_sm90_pair"
    engine = "wgmma"
    costs = "backward_wgmma_pair"
    walks_lists = beyond = True

    def serves(self, request: Request) -> str | None:
        """Refuses head dims that one block holds, deterministic sums, gradients that need scores, and arrays without tensor maps."""
        dims = request.spec.head_dim
        if max(dims.qk, dims.v) <= MOST:
            return f"head dims are {dims.qk} and {dims.v}: one block holds the gradients of {MOST} columns"
        if asked := _of_scores(request.spec):
            what = f"the gradient of {asked[0]} depends on q k^T, which the block that has ds lacks: the other one has it"
            return f"{what}; backward_sm80 has both, and takes about 1.8 times as long"
        return (
            limits.unserved(request, engine=self.engine, operand="native")
            or unlisted(request.spec)
            or (None if request.mapped else "it takes arrays that tensor maps address: rows aligned to 16 bytes, the last axis contiguous")
        )

    def check(self, problem: Problem) -> None:
        """Raises PlanError for head dims that no kernel has."""
        limits.check(problem)

    def drafts(self, problem: Problem) -> Iterator[Draft]:
        """Query tiles."""
        yield from (_draft(problem, queries) for queries in QUERIES)

    def objection(self, problem: Problem, draft: Draft) -> str | None:
        """Registers; the place of the columns of k that the block of dk multiplies."""
        tile = draft.tile
        beside = max(0, tile.qk_stored - tile.v_stored)  # columns of k that lie beside v
        rest, place = KEYS * (tile.qk_stored - _dq_columns(tile) - beside), tile.block_m * max(tile.qk_stored, tile.v_stored)
        if rest > place:
            return f"{rest} elements of k take the place of a query tile, which has {place}"
        needed = max(tile.qk_columns, tile.v_columns) // 2 + 3 * tile.block_m // 2
        if needed > FRAGMENTS:
            return f"a gradient, s, dq and two operands take {needed} registers a thread, {FRAGMENTS} can be held"
        return None

    def cost(self, problem: Problem, draft: Draft) -> dict[str, float]:
        """Roofline of a query tile and a key tile in either block, and what surrounds it."""
        tile, arch, known = draft.tile, problem.arch, costs.of_arch(problem.arch, self.costs)
        m, n, columns, of_dq = tile.block_m, tile.block_n, tile.qk_columns + tile.v_columns, _dq_columns(tile)
        step = {
            "tensor cores": 2 * m * n * (columns + of_dq) / arch.mma_flops,
            "shared memory": 2 * (2 * m * columns + n * max(tile.qk_columns, tile.v_columns) + 4 * m * n + n * of_dq) / SHARED_BYTES,
            "special functions": m * n * (problem.softmax.exponentials + problem.holes.score.instructions.special) / arch.exp2,
            "sums": FLOAT_BYTES * m * of_dq / known["sum_bytes"],
        }
        clocks = max(step.values()) + known["step"]
        return {**step, "step": clocks, "total": BLOCKS * problem.seen.key_tiles(m, n) * clocks / m}

    def parts(self, problem: Problem, draft: Draft) -> Parts:
        """A cluster a key tile, between the two small kernels."""
        tile, shares = draft.tile, problem.request.head_shares
        grid = Grid(draft.workers.threads, (BLOCKS, *shared_heads(shares), *key_tiles(problem.spec, tile)), cluster=BLOCKS)
        way = WarpgroupsPlan(elements=elements(problem), head_shares=shares, in_turns=problem.spec.deterministic)
        kernel = replace(draft.backward(grid, problem), warpgroups=way)
        before = delta(problem.spec, tile, adders=BLOCKS if problem.spec.deterministic else 0)
        arguments = (*arrays(problem.spec, tile, shares), *before.arguments, *others(problem.spec))
        return (
            Parts((*before.kernels, kernel), arguments, before.scratch)
            .followed(finish_queries(problem.spec, tile))
            .followed(finish_keys(problem.spec, tile, shares))
        )


def _dq_columns(tile: TilePlan) -> int:
    """The columns of dq that the block of dv multiplies, 64 a warpgroup: half of them, and the odd part."""
    part = ROW_BYTES // 2
    return part * -(-tile.qk_stored // part // 2)


def _of_scores(spec: Spec) -> list[str]:
    """The tensors and params whose gradients by score or weight need q k^T, or weights that are none of a softmax: where the scale or a
    slope has it, or the score is no sum with it."""
    if not spec.with_grad:
        return []
    found = derivatives(spec)
    slopes = (*found.score.items(), *found.weight.items())
    needing = [by for by, slope in slopes if found.s != ONE or S in walk(slope) or not spec.softmax.normalized]
    read = {by.name if isinstance(by, Name) else by.tensor for by in (*needing, *found.scale)}
    return [one.name for one in spec.with_grad if one.name in read]


def _draft(problem: Problem, queries: int) -> Draft:
    qk, v, element = problem.spec.head_dim.qk, problem.spec.head_dim.v, problem.spec.element
    row = ROW_BYTES // element.bytes
    tile = TilePlan(
        block_m=queries,
        block_n=KEYS,
        qk_columns=up(qk, element.k_step),
        v_columns=up(v, element.k_step),
        qk_stored=up(qk, row),
        v_stored=up(v, row),
    )
    widest = max(tile.qk_stored, tile.v_stored) * element.bytes
    pieces = (
        ("K or V", "KEPT", KEYS * widest, 1, 1024),
        ("Q or do", "RING", queries * widest, STAGES, 1024),
        ("ds", "DS", queries * KEYS * element.bytes, BUFFERS, 1024),
        ("lse or delta", "ROWS", 4 * queries, STEPS, 16),
        ("step", "STEP", 4, STEPS, 8),
    )
    counts = (("kept full", "KEPT_FULL", 1), ("ring full", "RING_FULL", STAGES), ("ring empty", "RING_EMPTY", STAGES))
    crossing = (("ds full", "DS_FULL", BUFFERS), ("ds empty", "DS_EMPTY", BUFFERS), ("weights full", "WEIGHTS_FULL", 2 * BUFFERS))
    return Draft(
        tile=tile,
        workers=WorkersPlan(warps=8, load_warps=4, compute_registers=COMPUTE_REGISTERS, load_registers=LOAD_REGISTERS),
        pipeline=PipelinePlan(stages=STAGES),
        smem=lay_out(pieces, (*counts, *crossing, *further_barriers(problem.spec)), problem.arch.shared_bytes),
        dealing=DealingPlan(longest_first=not problem.seen.uniform),
    )
