"""Planning the backward for wgmma, of Hopper: persistent blocks take key tiles, two warpgroups multiply 64 keys each, a warp loads (TMA).

Products are transposed, so that p and ds are operands in registers. dk and dv stay there over all query tiles of a key tile; dq is added to
float32 in memory, and that bounds the kernel: the more queries a tile has, the fewer key tiles' sums meet in the same time.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from flashgen.plan.backward_kernel import Elements, Finish, WarpgroupsPlan
from flashgen.plan.costs import model as costs
from flashgen.plan.engines import limits
from flashgen.plan.engines.limits import FLOAT_BYTES, SHARED_BYTES, up
from flashgen.plan.kernel import ROW_BYTES, DealingPlan, Grid, PipelinePlan, TilePlan, WorkersPlan
from flashgen.plan.kernels.arguments import further_arguments, gradient_arguments, key_tiles, lse_arguments, strides
from flashgen.plan.kernels.delta import delta
from flashgen.plan.kernels.finish_keys import finish_keys
from flashgen.plan.kernels.finish_queries import counts, finish_queries
from flashgen.plan.program import Argument, Parts
from flashgen.plan.search import LENGTHS
from flashgen.plan.smem import lay_out
from flashgen.plan.strategy import BackwardStrategy, Draft, Problem, Request
from flashgen.plan.sum_places import SumPlaces
from flashgen.spec import Spec

MOST, NARROW = 128, 64  # columns of q, k or v: what a thread's registers hold of dk and dv, and what leaves room for larger tiles
KEYS, WARPGROUP_KEYS = 128, 64  # of a tile, of a warpgroup
QUERIES = range(32, 129, 16)  # of tiles
FRAGMENTS = 213  # registers a thread that dk, dv, s, dp and what is read beside them can have before the compiler spills
MOST_QUERIES = {
    "weights": (128, 112),
    "slopes": (96, 64),
    "gradients": (80, 48),
    "weighed": (80, 48),
    "weighed_gradients": (80, 48),
}  # by what is kept of an element, of NARROW columns and of more
QUERIES_AHEAD = 64  # of a tile whose lse and delta leave registers for those of the next one, if no tensor wants some
REGISTERS, ROUNDING_REGISTERS = (240, 24), (232, 40)  # of who multiplies and who loads; the same where warps beside round dq


class BackwardWgmma(BackwardStrategy):
    """16-bit operands in arrays that tensor maps take, head dims to 128."""

    skeleton = "backward_sm90"
    engine = "wgmma"
    costs = "backward_wgmma"
    walks_lists = beyond = True

    def serves(self, request: Request) -> str | None:
        """Refuses head dims beyond MOST, deterministic sums, and arrays that tensor maps do not take."""
        dims = request.spec.head_dim
        if max(dims.qk, dims.v) > MOST:
            return f"head dims are {dims.qk} and {dims.v}: registers hold the gradients of {MOST} columns of k and of v"
        return (
            limits.unserved(request, engine=self.engine, operand="native")
            or unlisted(request.spec)
            or (None if request.mapped else "it takes arrays that tensor maps address: rows aligned to 16 bytes, the last axis contiguous")
        )

    def check(self, problem: Problem) -> None:
        """Raises PlanError for head dims that no kernel has."""
        limits.check(problem)

    def drafts(self, problem: Problem) -> Iterator[Draft]:
        """Query tiles, and whether the next key tile loads while this one is worked on."""
        for queries, key_stages in product(QUERIES, (1, 2)):
            yield _draft(problem, queries, key_stages)

    def objection(self, problem: Problem, draft: Draft) -> str | None:
        """Registers."""
        tile, kept = draft.tile, elements(problem)
        most = MOST_QUERIES[kept][_wide(tile)]
        if tile.block_m > most:
            return f"with {kept} kept of each element, {most} queries are what registers hold"
        needed = (tile.qk_columns + tile.v_columns) // 2 + tile.block_m + tile.block_m // 16
        if needed > FRAGMENTS:
            return f"dk, dv, s, dp and the rest take {needed} registers a thread, {FRAGMENTS} can be held"
        return None

    def cost(self, problem: Problem, draft: Draft) -> dict[str, float]:
        """Roofline of a query tile and a key tile, and what surrounds it."""
        tile, arch, known = draft.tile, problem.arch, costs.of_arch(problem.arch, self.costs)
        m, n, qk, v = tile.block_m, tile.block_n, tile.qk_columns, tile.v_columns
        step = {
            "tensor cores": 2 * m * n * (3 * qk + 2 * v) / arch.mma_flops,
            "shared memory": 2 * (2 * m * (2 * qk + 2 * v) + n * (2 * qk + v) + 2 * m * n) / SHARED_BYTES,
            "special functions": m * n * (problem.softmax.exponentials + problem.holes.score.instructions.special) / arch.exp2,
            "sums": FLOAT_BYTES * m * qk / known["sum_bytes"],
        }
        clocks = max(step.values()) + known["step"]
        tiles = problem.seen.key_tiles(m, n)  # of a query tile
        around = known["key_tile"] / draft.key_stages * n / problem.seen.length  # a query row
        alone = draft.key_stages == 1 and not problem.seen.uniform
        uneven = 1 + (known["uneven"] - 1) * LENGTHS[-1] / problem.seen.length if alone else 1
        return {**step, "step": clocks, "total": (tiles * clocks / m + around) * uneven}

    def parts(self, problem: Problem, draft: Draft) -> Parts:
        """Blocks that take key tiles among them, between the two small kernels."""
        tile, shares = draft.tile, problem.request.head_shares
        grid = Grid(draft.workers.threads, (*shared_heads(shares), *key_tiles(problem.spec, tile)), resident=1)
        kept = elements(problem)
        held = kept == "weights" and _wide(tile)
        kernel = draft.backward(grid, problem)
        way = WarpgroupsPlan(
            key_stages=draft.key_stages,
            elements=kept,
            rows_held=held,
            ahead=held and tile.block_m <= QUERIES_AHEAD and not problem.spec.tensors,
            copied=draft.copied,
            head_shares=shares,
            in_turns=problem.spec.deterministic,
            do_first=problem.seen.uniform and not _wide(tile),
            finish=finish(problem, tile),
        )
        kernel = replace(kernel, warpgroups=way)
        beside = way.finish == "beside"
        places = SumPlaces(tile.block_n, problem.arch.multiprocessors) if beside else None
        before = delta(problem.spec, tile, adders=1 if problem.spec.deterministic else 0, places=places)
        arguments = (*arrays(problem.spec, tile, shares), *counter(beside), *before.arguments, *others(problem.spec))
        after = counts() if beside else finish_queries(problem.spec, tile)
        return Parts((*before.kernels, kernel), arguments, before.scratch).followed(after).followed(finish_keys(problem.spec, tile, shares))


def _wide(tile: TilePlan) -> bool:
    """True if columns leave registers for tiles of fewer queries than NARROW ones do."""
    return max(tile.qk_columns, tile.v_columns) > NARROW


def elements(problem: Problem) -> Elements:
    """The template that says what is kept of an element until ds is known."""
    backward = problem.holes.backward
    assert backward is not None
    if backward.gradients:
        return "weighed_gradients" if problem.spec.weight else "gradients"
    if problem.spec.weight:
        return "weighed"
    return "slopes" if backward.slope.body or not problem.softmax.normalized else "weights"


def _draft(problem: Problem, queries: int, key_stages: int) -> Draft:
    qk, v, element = problem.spec.head_dim.qk, problem.spec.head_dim.v, problem.spec.element
    row, stages = ROW_BYTES // element.bytes, 2
    tile = TilePlan(
        block_m=queries,
        block_n=KEYS,
        qk_columns=up(qk, element.k_step),
        v_columns=up(v, element.k_step),
        qk_stored=up(qk, row),
        v_stored=up(v, row),
    )
    pieces = (
        ("K", "K", KEYS * tile.qk_stored * element.bytes, key_stages, 1024),
        ("V", "V", KEYS * tile.v_stored * element.bytes, key_stages, 1024),
        ("Q", "Q", queries * tile.qk_stored * element.bytes, stages, 1024),
        ("do", "DO", queries * tile.v_stored * element.bytes, stages, 1024),
        ("ds", "DS", queries * KEYS * element.bytes, 2, 1024),
        ("lse", "LSE", 4 * queries, stages, 16),
        ("delta", "DELTA", 4 * queries, stages, 16),
        ("tile", "TILE", 8, key_stages, 8),
        ("step", "STEP", 4, stages, 8),
    )
    counts = (("K", "K", key_stages), ("Q", "Q", stages), ("do", "DO", stages), ("ds", "DS", 2))
    sums = ("dq", "DQ", 4 * queries * tile.qk_stored, 1, 128)
    barriers = [
        *further_barriers(problem.spec),
        *((f"{name} {state}", f"{symbol}_{state.upper()}", n) for name, symbol, n in counts for state in ("full", "empty")),
    ]
    wanted = key_stages == 1 and _wide(tile) and not problem.spec.deterministic
    with_sums = lay_out((*pieces, sums), barriers, problem.arch.shared_bytes) if wanted else ""
    copied = not isinstance(with_sums, str)
    beside = finish(problem, tile) == "beside"
    assert not (copied and beside), "bulk copies are counted when they are asked for, not when they have come"
    if beside:
        barriers.append(("summed", "SUMMED", 2 * key_stages))
    compute, load = ROUNDING_REGISTERS if beside else REGISTERS
    return Draft(
        tile=tile,
        workers=WorkersPlan(warps=8, load_warps=4, compute_registers=compute, load_registers=load),
        pipeline=PipelinePlan(stages=stages),
        smem=with_sums if copied else lay_out(pieces, barriers, problem.arch.shared_bytes),
        dealing=DealingPlan(counter=True, longest_first=not problem.seen.uniform),
        key_stages=key_stages,
        copied=copied,
    )


def finish(problem: Problem, tile: TilePlan) -> Finish:
    """Says who rounds the sums of dq: warps beside, where products take so long, and so few registers, that they are done meanwhile."""
    spec = problem.spec
    beside = problem.seen.uniform and not _wide(tile) and elements(problem) == "weights" and not spec.tensors
    alone = problem.request.head_shares == 1  # else addresses of sums of dk and dv take registers too
    return "beside" if beside and alone and not spec.geometry.packed and not spec.deterministic else "after"


def unlisted(spec: Spec) -> str | None:
    """The reason why no tile divides the blocks of a spec's lists, if none does; tiles of 32 and of 48 queries are always legal."""
    if not (blocks := spec.blocks) or (blocks.n % KEYS == 0 and any(blocks.m % queries == 0 for queries in QUERIES[:2])):
        return None
    return f"its tiles have {KEYS} keys and 32 or 48 queries, or more, and blocks of lists {blocks.m} queries and {blocks.n} keys"


def further_barriers(spec: Spec) -> list[tuple[str, str, int]]:
    """The barriers of query tiles that hold rows of the next sequence, and of turns at the sums of dq."""
    turns = [("turn", "TURN", 1), ("added", "ADDED", 2), ("passed", "PASSED", 2)] if spec.deterministic else []
    return [*([("tail", "TAIL", 1)] if spec.geometry.packed else []), *turns]


def shared_heads(shares: int) -> tuple[int, ...]:
    """The pieces of a key tile's work, where there are several."""
    return (shares,) if shares > 1 else ()


def arrays(spec: Spec, tile: TilePlan, head_shares: int) -> Iterator[Argument]:
    """Tensor maps of the products' arrays, and what the small kernels read and write by strides."""
    element, columns = spec.element.cuda, ROW_BYTES // spec.element.bytes
    written = (("dk", "dk", WARPGROUP_KEYS), ("dv", "dv", WARPGROUP_KEYS))
    by_row = spec.geometry.packed or head_shares > 1  # a box would reach into the next sequence; a kernel after writes them
    maps = (("q", "q", tile.block_m), ("k", "k", KEYS), ("v", "v", KEYS), ("dout_map", "do", tile.block_m))
    for name, of, rows in (*maps, *(() if by_row else written)):
        yield Argument(name, "TensorMap", "tensor_map", of, (columns, rows))
    yield Argument("o", f"const {spec.out_element.cuda}*", "pointer", "o")
    yield Argument("dout", f"const {element}*", "pointer", "do", comment="do: the gradient of o, of its layout")
    yield from lse_arguments(spec)
    by_rows = ("dq", "dk", "dv") if by_row else ("dq",)
    for name in by_rows:
        yield Argument(name, f"{element}*", "pointer", name)
    for name, of in (("o", "o"), ("dout", "do"), *((name, name) for name in by_rows)):
        yield Argument(f"{name}_strides", strides(spec, of), "strides", of)


def counter(beside: bool) -> Iterator[Argument]:
    """The member of Params by which key tiles are dealt. `beside`: and pieces of the sums of dq."""
    what = "key tiles dealt; pieces of dq that are rounded" if beside else "key tiles dealt beyond the first of each block"
    dealt = f"{what}; blocks that are done. Zero at launch, zero again after"
    yield Argument("counter", "int*", "pointer", "counter", comment=dealt)


def others(spec: Spec) -> Iterator[Argument]:
    """The gradients of tensors and params, and what every kernel has."""
    yield from gradient_arguments(spec)
    for argument in further_arguments(spec):
        yield replace(argument, comment="key/value heads whose queries stay in the L2 together") if argument.name == "section" else argument
