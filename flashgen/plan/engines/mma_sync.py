"""Planning for mma.sync, of sm_80 and later, and for arrays that TMA cannot address.

A block takes one query tile; each of its warps copies (cp.async) and multiplies.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from math import gcd
from typing import ClassVar

from flashgen.errors import PlanError
from flashgen.expr import KeyRanges
from flashgen.plan import shares
from flashgen.plan.costs import model as costs
from flashgen.plan.engines import limits
from flashgen.plan.engines.instructions import native_reasons
from flashgen.plan.engines.limits import FRAGMENT_ROWS, LOADED_NUMBERS, PRODUCT_NUMBERS, SCHEDULERS, SHARED_BYTES, TILE_ROWS, up, v_slices
from flashgen.plan.kernel import DealingPlan, Grid, PipelinePlan, TilePlan, WorkersPlan
from flashgen.plan.kernels.arguments import further_arguments, row_arguments, strides
from flashgen.plan.program import Argument, Parts
from flashgen.plan.smem import lay_out, repeated
from flashgen.plan.strands import FEW_IN_TURN, RESERVED_BYTES, RESIDENT_WARPS, STATE_PADDING, strand_tiles
from flashgen.plan.strategy import Draft, Problem, Request, Strategy, Tried
from flashgen.spec import Spec

MAX_WARPS, MAX_KEYS, MAX_STAGES = 8, 256, 5

# Registers a thread, fitted to what the compiler spills.
FRAGMENTS = 208  # of q, s, p and o in a product
SOFTMAX_FRAGMENTS = 280  # in between, when s counts more: its exponentials and p come to be
SOFTMAX_SCORES = 2.25
QUERY_MARGIN = 8  # more of 16 rows, when q stays in registers
HOLE_REGISTERS = 24  # more where every element of s reads arrays
GROUP_REGISTERS = 8  # more where each row has a head of its own
LIST_REGISTERS = 12  # more where key tiles are those of a list: its words are read in between

PRODUCT_FLOPS = 4 * 4096  # of the four warps of a scheduler each, in one product of 16 rows, 8 keys and 16 columns


class MmaSync(Strategy):
    """16-bit operands, online, in arrays of any strides."""

    skeleton = "forward_sm80"
    engine = "mma_sync"
    costs = "mma_sync"
    walks_lists: ClassVar[bool] = True
    # p stays below 2^8, exact in float16 and bfloat16. A warp's step of 128x64 executes 770 instead of 880 instructions at head dim 128,
    # 594 instead of 634 at 64, and no fewer at 32.
    lazy_from: ClassVar[tuple[float, float]] = (33, 33)

    def serves(self, request: Request) -> str | None:
        """Refuses what is no online softmax of 16-bit operands."""
        return limits.unserved(request, engine=self.engine, operand="native", algorithm="online")

    def check(self, problem: Problem) -> None:
        """Raises PlanError for head dims and schedules that no kernel has."""
        limits.check(problem, limits.MAX_SLICED)
        v, slices = problem.spec.head_dim.v, v_slices(problem.spec)
        if v % (8 * slices):
            raise PlanError(
                f"head_dim v is {v}: {slices} blocks share its columns on {problem.arch.name}, so it takes multiples of {8 * slices}"
            )

    def drafts(self, problem: Problem) -> Iterator[Draft]:
        """Tiles, warps, stages, and whether q stays in registers."""
        spec = problem.spec
        few = problem.request.demand.rows
        rows = choices(spec.block.m, (64, 128) if spec.warps is None else (16 * spec.warps, 32 * spec.warps))
        keys = choices(spec.block.n, (16, 32, 48, 64, 96, 128))
        warps = choices(spec.warps, (4, 8) if spec.block.m is None else range(1, MAX_WARPS + 1))
        stages = choices(spec.stages, (1, 2, 3))
        if few:  # one tile, of 16 rows a warp or more; what counts is how much is on its way from memory
            rows, keys, stages = choices(spec.block.m, (few,)), choices(spec.block.n, (16, 32, 64)), choices(spec.stages, (2, 3, 4, 5))
            asked = problem.request.demand
            beside = 1 if asked.in_turn else asked.strands // asked.each
            if asked.strands > 1:
                keys = strand_tiles(problem)
            least_warps = few // 16 if asked.in_turn else max(1, few // 32)
            warps = choices(spec.warps, (beside,) if beside > 1 else sorted({least_warps, few // 16}))
        least = few or 64
        if spec.blocks and not problem.grouped and gcd(spec.blocks.m, least) < least:  # lists of fewer queries than usual tiles have
            few = gcd(spec.blocks.m, least)
            rows, warps = choices(spec.block.m, (few,)), choices(spec.warps, (few // 16,))
        for block_m, block_n, w, n, kept in product(rows, keys, warps, stages, (True, False)):
            yield _draft(problem, (block_m, block_n), warps=w, stages=n, kept=kept)

    def objection(self, problem: Problem, draft: Draft) -> str | None:
        """Sizes of products, warps, stages, registers."""
        tile, pipe, warps = draft.tile, draft.pipeline, draft.workers.warps
        if not 1 <= warps <= MAX_WARPS:
            return f"warps is {warps}: 1 to {MAX_WARPS}"
        if warps % draft.workers.beside:
            return f"warps is {warps}: {draft.workers.beside} share the keys of a block, so a multiple of that"
        least = 16 * warps // draft.workers.beside
        if tile.block_m < 1 or tile.block_m % least:
            return f"block m is {tile.block_m}: each of {warps} warps takes 16 rows or more, so a multiple of {least}"
        if tile.block_n % 16 or not 16 <= tile.block_n <= MAX_KEYS:
            return f"block n is {tile.block_n}: a product takes 16 keys, so a multiple of 16 up to {MAX_KEYS}"
        if not 1 <= pipe.stages <= MAX_STAGES:
            return f"stages is {pipe.stages}: 1 to {MAX_STAGES}"
        rows, s, o = _rows(draft), tile.block_n // 2, tile.v_columns // 2
        q = tile.qk_columns // 4 + QUERY_MARGIN if pipe.query_in_registers else 4
        holes = problem.holes
        read = holes.along.registers(tile.block_n) + (HOLE_REGISTERS if holes.gathers or holes.reads else 0)
        read += GROUP_REGISTERS if problem.grouped else 0
        read += LIST_REGISTERS if problem.seen.listed else 0
        state = q + o + holes.outputs.registers(tile.block_n, tile.v_columns)
        product, softmax = (rows * (state + x) + read for x in (s, SOFTMAX_SCORES * s))
        if product > FRAGMENTS:
            return f"q, s and o take {product:.0f} registers a thread, {FRAGMENTS} can be held"
        if softmax > SOFTMAX_FRAGMENTS:
            return f"softmax takes {softmax:.0f} registers a thread, {SOFTMAX_FRAGMENTS} can be held"
        return None

    def cost(self, problem: Problem, draft: Draft) -> dict[str, float]:
        """Roofline of a key step, and what surrounds it."""
        tile, pipe, arch = draft.tile, draft.pipeline, problem.arch
        known, score = costs.of_arch(arch, self.costs), problem.holes.element
        beside, rows = draft.workers.beside, _rows(draft)
        warps, blocks = draft.workers.warps // beside, draft.workers.blocks * beside  # which do as blocks of their own
        m, n, columns = tile.block_m, tile.block_n, tile.qk_columns + tile.v_columns
        mma_flops, size = min(arch.mma_flops, known["mma_flops"]), problem.spec.element.bytes
        query = 0 if pipe.query_in_registers else tile.qk_columns
        rescale = tile.v_columns * known["rescale_lazy" if problem.softmax.rescale == "lazy" else "rescale"]
        products = rows * n * columns / PRODUCT_NUMBERS
        loads = n * columns / LOADED_NUMBERS + rows * query / FRAGMENT_ROWS + n * columns / (warps * 8 * problem.copy_bytes)
        others = loads + rows * (n / 2 * (known["softmax"] + score.floats) + rescale) + known["loop"]
        one_warp = products * PRODUCT_FLOPS / mma_flops + others * known["lone_warp"] + known["latency"]
        one_warp += known["load_latency"] if pipe.stages == 1 else 0
        step = {
            "tensor cores": 2 * m * n * columns / mma_flops,
            "special functions": m * n * (problem.softmax.exponentials + score.special) / arch.exp2,
            "instructions": (products + others) * warps / SCHEDULERS,
            "shared memory": ((warps + 1) * n * columns + m * query) * size / SHARED_BYTES,
            "one warp": one_warp / blocks,  # its products and exponentials follow each other
        }
        if problem.request.demand.rows:
            return _few_rows_cost(problem, draft, step)
        clocks = max(step.values()) + known["step"] + known["barrier"] * (2 if pipe.stages == 1 else 1) / blocks**2
        total = (problem.seen.key_tiles(m, n) + 1 / blocks) * clocks + known["query_tile"] * m / TILE_ROWS / blocks
        return {**step, "step": clocks, "total": total * tile.v_slices * up(problem.seen.length, m) / problem.seen.length / m}

    def parts(self, problem: Problem, draft: Draft, ranges: KeyRanges) -> Parts:
        """A block a query tile."""
        plan, blocks = draft.dealing.shares, shares.pieces(problem.spec, draft.tile, draft.dealing)
        resident = draft.workers.blocks if plan and plan.own else 0
        early = bool(draft.dealing.listed) and problem.arch.early  # lists of few rows take as long as a launch
        grid = Grid(draft.workers.threads, blocks, early, resident=resident)
        if draft.workers.in_cluster:
            cluster = problem.request.demand.cluster
            grid = replace(grid, blocks=(cluster, *blocks), cluster=cluster)
        found = Parts((draft.attention("forward", grid, ranges),), native_arguments(problem.spec))
        return shares.combined(problem, draft.dealing.shares, found)

    def reasons(self, problem: Problem, draft: Draft, tried: Tried) -> Iterator[tuple[str, str]]:
        """The reasons for slices, shares of keys, and instructions."""
        yield from limits.slice_reasons(draft.tile)
        yield from shares.reasons(draft.dealing)
        if draft.workers.strands > 1:
            each = draft.workers.each
            how = (
                "a warp takes them in turn" if draft.workers.in_turn else "each has a warp" if each == 1 else f"a warp takes {each} of them"
            )
            yield "strands", f"a share's keys are {draft.workers.strands} strands, joined in the block: {how}; bits are the same either way"
        yield from native_reasons(problem, draft)


def _few_rows_cost(problem: Problem, draft: Draft, step: dict[str, float]) -> dict[str, float]:
    """The clocks of few query rows: keys and values come as fast as memory gives them, if enough of them is on its way."""
    tile, known = draft.tile, costs.of_arch(problem.arch, shares.COSTS)
    tile_bytes = tile.block_n * (tile.qk_columns + tile.v_columns) * problem.spec.element.bytes
    warps = draft.workers.blocks * draft.workers.beside  # that have tiles of their own on their way, if a call has so many shares
    ahead, fewest = (draft.pipeline.stages - 1) * tile_bytes, min(warps, known["few_pieces"])
    rate = min(known["stream"], max(1, fewest * ahead) / known["stream_latency"])
    crowd = warps * ahead / known["crowd"]
    step = {**step, "memory": tile_bytes / rate * (1 if problem.request.demand.alone else 1 + crowd)}
    exposed = step["one warp"] / 2
    clocks = max(step.values()) + exposed
    total = (problem.seen.key_tiles(tile.block_m, tile.block_n) + 1) * clocks * tile.v_slices / tile.block_m
    if problem.request.demand.alone:  # what is ahead takes nothing from others
        total *= 1 - crowd
        total *= max(1, FEW_IN_TURN / draft.workers.blocks) if draft.workers.in_turn else 1
    elif draft.workers.in_cluster and draft.workers.warps < RESIDENT_WARPS:
        total *= 2 / draft.workers.blocks  # half as many clusters run at a time where a block has no other beside it
    return {**step, "exposed": exposed, "step": clocks, "total": total}


def choices(pinned: int | None, usual: Iterable[int]) -> Iterable[int]:
    """The value that the spec pins, else the usual ones."""
    return usual if pinned is None else (pinned,)


def _draft(problem: Problem, block: tuple[int, int], *, warps: int, stages: int, kept: bool) -> Draft:
    block_m, block_n = block
    slices = v_slices(problem.spec)
    step = problem.spec.element.k_step
    qk, v = up(problem.spec.head_dim.qk, step), up(problem.spec.head_dim.v // slices, step)
    tile = TilePlan(block_m=block_m, block_n=block_n, qk_columns=qk, v_columns=v, qk_stored=qk, v_stored=v, v_slices=slices)
    pipeline = PipelinePlan(stages=stages, query_in_registers=kept, copy_bytes=problem.copy_bytes)
    size = problem.spec.element.bytes
    q_bytes, k_bytes, v_bytes = block_m * max(qk, v) * size, block_n * qk * size, block_n * v * size
    pieces = [("Q", "Q", q_bytes, 1, 128), ("K", "K", k_bytes, stages, 128), ("V", "V", v_bytes, stages, 128)]
    asked = problem.request.demand
    assert asked.each == 1 or not problem.seen.listed, "who takes several strands finds their keys by ranges"
    strands = asked.strands * asked.cluster if asked.in_turn else asked.strands
    workers = WorkersPlan(
        warps, strands=strands, in_turn=asked.in_turn, in_cluster=asked.cluster > 1 and not asked.in_turn, each=asked.each
    )
    if asked.in_turn:
        pieces.append(("o of strands", "JOINED", block_m * v * 4, 1, 128))
    last, state = ("O", "O", q_bytes, 1, 128), block_m * 4 * (v + STATE_PADDING)
    if workers.in_cluster:
        last = ("state", "STATE", state, workers.each, 128)
    if workers.each > 1:  # states wait before the key tiles: where queries were, if those are in registers
        waiting = state * (workers.each - 1)
        pieces = [("Q", "Q", max(q_bytes, waiting), 1, 128), *pieces[1:]] if kept else [("waiting", "WAITING", waiting, 1, 128), *pieces]
    smem = repeated(lay_out(pieces, [], problem.arch.shared_bytes, [[last]]), workers.beside)
    dealing = shares.dealt(problem, tile, DealingPlan(longest_first=not problem.seen.uniform))
    return with_blocks(problem, Draft(tile=tile, workers=workers, pipeline=pipeline, smem=smem, dealing=dealing))


def with_blocks(problem: Problem, draft: Draft) -> Draft:
    """The draft with as many blocks on a multiprocessor as its shared memory and RESIDENT_WARPS allow, if a call has so many."""
    if isinstance(draft.smem, str) or (problem.request.demand.alone and not draft.workers.in_turn):
        return draft
    by_shared = problem.arch.multiprocessor_shared_bytes // (draft.smem.bytes + RESERVED_BYTES)
    most = FEW_IN_TURN if problem.request.demand.alone else RESIDENT_WARPS
    blocks = max(1, min(by_shared, RESIDENT_WARPS // draft.workers.warps, most))
    return replace(draft, workers=replace(draft.workers, blocks=blocks))


def _rows(draft: Draft) -> int:
    """16-row tiles of a warp."""
    return draft.tile.block_m * draft.workers.beside // (16 * draft.workers.warps)


def native_arguments(spec: Spec, *scratch: Argument) -> tuple[Argument, ...]:
    """The members of Params where kernels copy 16-bit operands themselves; `scratch` between outputs and strides."""
    return (
        *(Argument(x, f"const {spec.element.cuda}*", "pointer", x) for x in ("q", "k", "v")),
        Argument("o", f"{spec.out_element.cuda}*", "pointer", "o"),
        *row_arguments(spec),
        *scratch,
        *(Argument(f"{x}_strides", strides(spec, x), "strides", x) for x in ("q", "k", "v", "o")),
        *further_arguments(spec),
    )
