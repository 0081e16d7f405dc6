"""Planning for wgmma, of Hopper: warpgroups multiply, one loads (TMA), query tiles are dealt to persistent blocks."""

from collections.abc import Iterator
from itertools import product
from math import gcd

from flashgen.expr import Holes, KeyRanges
from flashgen.plan import shares
from flashgen.plan.costs import model as costs
from flashgen.plan.costs.model import Costs
from flashgen.plan.engines import limits
from flashgen.plan.engines.instructions import PRODUCTS, native_reasons
from flashgen.plan.engines.limits import SHARED_BYTES, TILE_ROWS, up, v_slices
from flashgen.plan.kernel import ROW_BYTES, WARPGROUP_ROWS, DealingPlan, Grid, OutputPlace, PipelinePlan, SmemPlan, TilePlan, WorkersPlan
from flashgen.plan.kernels.arguments import further_arguments, row_arguments
from flashgen.plan.program import Argument, Parts
from flashgen.plan.smem import lay_out
from flashgen.plan.strategy import STRIPE, Draft, Problem, Request, Strategy, Tried
from flashgen.spec import Spec

REGISTERS = {1: (56, 256), 2: (40, 232), 3: (32, 160)}  # of a loading and of a computing thread, by computing warpgroups
ACCUMULATORS = {1: 208, 2: 208, 3: 128}  # s, p and o a thread, beyond which products spill or serialise
SCORE_REGISTERS = 24  # that is needed besides for what is computed ahead of the product, or in between,
READ_REGISTERS = 40  # that score or mask need which read tensors along the keys, besides what they read,
HALF_REGISTERS = {1: 20, 2: 20, 3: 16}  # where rows read elements of 16 bits, by computing warpgroups,
COLUMN_REGISTERS = 16  # where all rows read the same, ahead or from shared memory, or weights of keys alone,
SLOT_REGISTERS = 8  # where a score takes special functions and q has two places: else softcap at head dim 64 spills
LIST_REGISTERS = 12  # more where several are read and key tiles are those of a list, whose words are held
GATHERED = 0.75  # more a key of the tile, where they read tensors anywhere: the compiler has many reads under way

SMALLEST_PAGE = 16  # keys: a box takes 50 clocks to start, of two keys as of sixteen
NUMBER_STAGES = 2  # key tiles whose numbers are in shared memory
TILE_BYTES = 128  # of what is told about a query tile, all at once or each reader
MULTIPLIED = (0, 8)  # of exponentials one by multiply-adds, where three warpgroups keep the special function unit busy
KEYS = (16, 32, 48, 64, 80, 96, 112, 128, 160)  # of usual tiles; wider ones were never faster

OUTPUT_REASONS = {
    "own": "there is room to stage o beside q, so the next query tile loads while this one is written",
    "keys": "o leaves through the place of a key tile, so the next query tile loads while this one is written",
}


class Wgmma(Strategy):
    """16-bit operands, online, for arrays that tensor maps take."""

    skeleton = "forward_sm90"
    engine = "wgmma"
    costs = "wgmma"
    lazy_from = (64, 65)  # p stays below 2^8, exact in float16 and bfloat16; at 64 a busy score would spill
    separate = True
    shares_numbers = True
    walks_lists = True
    beyond = True

    def serves(self, request: Request) -> str | None:
        """Refuses few query rows, small pages, and arrays that tensor maps do not take."""
        if request.demand.rows and not request.demand.together:
            return f"its tiles have 64 query rows or more, and a key/value head has {request.demand.rows} or fewer"
        if request.spec.blocks and request.spec.blocks.m % WARPGROUP_ROWS:
            return f"its tiles have 64 query rows or more, and blocks of lists {request.spec.blocks.m}"
        if 0 < request.spec.page < SMALLEST_PAGE:
            return f"a page has {request.spec.page} keys: boxes of fewer than {SMALLEST_PAGE} are slower than copies by threads"
        return limits.unserved(request, engine=self.engine, operand="native", algorithm="online") or (
            None if request.mapped else "it takes arrays that tensor maps address: rows aligned to 16 bytes, the last axis contiguous"
        )

    def check(self, problem: Problem) -> None:
        """Raises PlanError for head dims and schedules that no kernel has."""
        limits.check(problem, limits.MAX_SLICED)

    def drafts(self, problem: Problem) -> Iterator[Draft]:
        """Tiles, stages, and whether o has a place of its own."""
        spec, few = problem.spec, problem.request.demand.rows
        together = problem.holes.together is not None  # scores of 16 elements at once take registers that three warpgroups lack
        by_warps = [few] if few else [64, 128, 192][: 2 if together else 3] if spec.warps is None else [spec.warps * 16]
        rows = by_warps if spec.block.m is None else [spec.block.m]
        keys = [n for n in KEYS if not (together and n % 32)] if spec.block.n is None else [spec.block.n]
        stages = [2, 3, 4] if spec.stages is None else [spec.stages]
        halves = not spec.geometry.packed and 128 * problem.seen.key_tiles(128, 128) <= costs.of_arch(problem.arch, self.costs)["halved"]
        busy = spec.softmax.normalized and problem.holes.score.instructions.special > 0
        for block_m, block_n, n, (place, ahead), multiplied in product(rows, keys, stages, _places(problem), MULTIPLIED):
            if not multiplied or (busy and block_m == 192):
                yield _draft(problem, (block_m, block_n), stages=n, place=place, ahead=ahead, multiplied=multiplied, halves=halves)

    def objection(self, problem: Problem, draft: Draft) -> str | None:
        """Sizes of products, stages, registers."""
        tile, pipe, spec = draft.tile, draft.pipeline, problem.spec
        groups = tile.block_m // 64
        if tile.block_m % 64 or groups not in REGISTERS:
            return f"block m is {tile.block_m}: a warpgroup takes 64 query rows and 1 to 3 compute, so 64, 128 or 192"
        if tile.block_n % 16 or not 16 <= tile.block_n <= 256:
            return f"block n is {tile.block_n}: a product takes multiples of 16 keys from 16 to 256"
        if not 1 <= pipe.stages <= 8:
            return f"stages is {pipe.stages}: 1 to 8"
        if spec.warps is not None and spec.warps * 16 != tile.block_m:
            return f"warps is {spec.warps}: a warp computes 16 query rows, so {tile.block_m // 16} for block m = {tile.block_m}"
        if pipe.output_place == "keys" and (groups == 3 or 64 * tile.v_stored > tile.block_n * min(tile.qk_stored, tile.v_stored)):
            return f"o of {groups} times 64 rows, {128 * tile.v_stored} bytes each, does not fit k's and v's place of {tile.block_n} keys"
        if pipe.query_stages > 1 and groups < 3 and not problem.request.demand.rows:
            return "two tiles of q serve three warpgroups: others lose more by another descriptor than by waiting"
        holes = problem.holes
        extra = _ahead(holes, groups)
        gathered = round(GATHERED * tile.block_n) if holes.gathers else 0
        extra += SLOT_REGISTERS if pipe.query_stages > 1 and holes.score.instructions.special else 0
        extra += LIST_REGISTERS if problem.seen.listed and len(holes.reads) > 1 else 0
        extra += holes.outputs.registers(tile.block_n, tile.v_columns)
        needed = tile.block_n * 3 // 4 + holes.along.registers(tile.block_n) + gathered + tile.v_columns // 2 + extra
        if needed > ACCUMULATORS[groups] and (groups > 1 or tile.block_n > 16):  # narrower there is none: it may spill
            return f"s, p and o take {needed} registers a thread, {ACCUMULATORS[groups]} can be held with {groups} computing warpgroups"
        return None

    def cost(self, problem: Problem, draft: Draft) -> dict[str, float]:
        """Roofline of a key step, and what surrounds it."""
        tile, pipe, arch = draft.tile, draft.pipeline, problem.arch
        m, n, groups = tile.block_m, tile.block_n, tile.block_m // WARPGROUP_ROWS
        known, seen, score = costs.of_arch(arch, self.costs), problem.seen, problem.holes.element
        multiplied = 1 / pipe.multiplied if pipe.multiplied else 0
        softmax, rescale = known["weight"], 0.0
        if problem.softmax.normalized:
            lazy = problem.softmax.rescale == "lazy"
            softmax, rescale = known["softmax"], tile.v_columns * known["rescale_lazy" if lazy else "rescale"]
        element = softmax + score.floats + PRODUCTS.all * multiplied + known["packed"]
        instructions = n / 2 * element + rescale + known["loop"]  # of a warp
        products = 2 * m * n * (tile.qk_columns + tile.v_columns) / arch.mma_flops
        elements = (groups + 1) * n * (tile.qk_columns + tile.v_columns) + m * tile.qk_columns
        step = {
            "tensor cores": products * (1 if groups == 2 else known["collisions"]),
            "special functions": m * n * (problem.softmax.exponentials + score.special - multiplied) / arch.exp2,
            "instructions": instructions * draft.workers.warpgroups,
            "shared memory": elements * problem.spec.element.bytes / SHARED_BYTES * known["contention"],
            "one warpgroup": products / groups / 2 + instructions * known["lone_warp"],  # its scores, then its softmax
        }
        exposed = known["exposed"] * min(step["tensor cores"], step["special functions"])
        if groups == 3 and step["special functions"] > step["tensor cores"]:
            exposed *= known["queued"]
        start = known.by_count("step", groups) * (1 if pipe.stages > 1 else known["one_stage"])
        clocks = max(step.values()) + exposed + start - pipe.stages
        rows = WARPGROUP_ROWS if draft.dealing.narrow and not draft.dealing.shares else m  # that see key tiles together
        tiles = (seen.key_tiles(rows, n) + seen.key_tiles(m, n)) / 2  # whoever skips one still takes its turn, hence half of the gain
        tiles += seen.paired  # which begin anywhere in a key tile
        around = (known["query_tile"] * m / TILE_ROWS + _output_clocks(known, pipe)) * up(seen.length, m)
        total = (tiles * clocks * up(seen.length, rows) + around) * tile.v_slices / seen.length / m
        return {**step, "exposed": exposed, "step": clocks, "total": total}

    def parts(self, problem: Problem, draft: Draft, ranges: KeyRanges) -> Parts:
        """One block a multiprocessor; the counter deals."""
        grid = Grid(draft.workers.threads, shares.pieces(problem.spec, draft.tile, draft.dealing), early=True, resident=1)
        found = Parts((draft.attention("forward", grid, ranges),), tuple(_arguments(problem.spec, draft)))
        return shares.combined(problem, draft.dealing.shares, found)

    def reasons(self, problem: Problem, draft: Draft, tried: Tried) -> Iterator[tuple[str, str]]:
        """The reasons for slices, shares, halves of the L2, the place of o, narrow warpgroups, and instructions."""
        tile, seen = draft.tile, problem.seen
        yield from limits.slice_reasons(tile)
        yield from shares.reasons(draft.dealing)
        if draft.dealing.halves:
            yield "halves", "blocks near one half of the L2 take one half of the heads, so that fewer bytes cross between the halves"
        if draft.pipeline.output_place in OUTPUT_REASONS:
            yield "output_place", OUTPUT_REASONS[draft.pipeline.output_place]
        if draft.dealing.narrow and draft.dealing.shares:
            yield "narrow", "a warpgroup that has no row, as most where a sequence has a single token, passes key tiles"
        elif draft.dealing.narrow:
            m, n = tile.block_m, tile.block_n
            tiles = f"{seen.key_tiles(STRIPE, n):.1f} of the {seen.key_tiles(m, n):.1f} key tiles of a query tile"
            when = "whatever the tensors hold" if seen.paired else f"on average {tiles} at length {seen.length}"
            yield "narrow", f"each warpgroup takes what its own {WARPGROUP_ROWS} rows see, {when}"
        yield from native_reasons(problem, draft)


def _places(problem: Problem) -> list[tuple[OutputPlace, int]]:
    """The places that o may leave from, with the number of query tiles whose q is there; float32, and rows of which the next may be another
    sequence's, go to memory from the registers."""
    if problem.request.demand.shared:
        return [("either", 2), ("either", 1)]
    if problem.spec.out_element.operand != "native":
        return [("registers", 1)]
    if problem.spec.geometry.packed:  # a box of o would reach into the next sequence
        return [("registers", 2), ("registers", 1)]
    return [("own", 2), ("own", 1), ("keys", 1), ("queries", 1)]


def _draft(
    problem: Problem, block: tuple[int, int], *, stages: int, place: OutputPlace, ahead: int, multiplied: int, halves: bool
) -> Draft:
    (block_m, block_n), qk, v, element = block, problem.spec.head_dim.qk, problem.spec.head_dim.v, problem.spec.element
    slices, row = v_slices(problem.spec), ROW_BYTES // element.bytes
    columns = up(v, element.k_step) if slices == 1 else up(-(-v // slices), row)  # whole rows: another block stores the next
    tile = TilePlan(
        block_m=block_m,
        block_n=block_n,
        qk_columns=up(qk, element.k_step),
        v_columns=columns,
        qk_stored=up(qk, row),
        v_stored=up(columns, row),
        v_slices=slices,
    )
    groups = max(1, block_m // WARPGROUP_ROWS)
    load, compute = REGISTERS[min(groups, 3)]
    workers = WorkersPlan(warps=4 * groups, load_warps=4, compute_registers=compute, load_registers=load, turns=groups > 1)
    pipeline = PipelinePlan(stages=stages, query_stages=ahead, output_place=place, multiplied=multiplied)
    dealing = DealingPlan(counter=True, longest_first=not problem.seen.uniform, halves=halves, narrow=_narrow(problem, block_m, block_n))
    dealing = shares.dealt(problem, tile, dealing)
    told = 1 + groups if dealing.narrow else 1
    return Draft(tile=tile, workers=workers, pipeline=pipeline, smem=_smem(problem, tile, pipeline, told), dealing=dealing)


def _narrow(problem: Problem, block_m: int, block_n: int) -> bool:
    """True if rows of 64 see clearly fewer key tiles than the query tile, or 192 rows seldom fill the last query tile of a sequence."""
    if block_m == 64:
        return False
    share = costs.of_arch(problem.arch, Wgmma.costs)["narrow"]
    return problem.seen.paired or block_m > 128 or problem.seen.key_tiles(64, block_n) < share * problem.seen.key_tiles(block_m, block_n)


def _smem(problem: Problem, tile: TilePlan, pipe: PipelinePlan, told: int) -> SmemPlan | str:
    """`told`: readers of what is dealt, each with a piece of its own."""
    stages, shares = pipe.stages, pipe.output_place == "queries"
    size, out_size = problem.spec.element.bytes, problem.spec.out_element.bytes
    q, o, read = tile.block_m * tile.qk_stored * size, tile.block_m * tile.v_stored * out_size, problem.holes.tile
    q = max(q, o) if shares else q
    pieces = [
        ("Q", "Q", q, pipe.query_stages, 1024),
        ("K", "K", tile.block_n * tile.qk_stored * size, stages, 1024),
        ("V", "V", tile.block_n * tile.v_stored * size, stages, 1024),
        *([("O", "O", o, 1, 1024)] if pipe.output_place == "own" else []),
        *([("numbers", "NUMBERS", number_bytes(problem.holes, tile), NUMBER_STAGES, 1024)] if problem.holes.brought else []),
        *([("tensor", "TENSOR", tile.block_m * read.row_bytes(tile.block_n), 2, 16)] if read else []),
    ]
    barriers = [(f"Q {state}", f"Q_{state.upper()}", pipe.query_stages) for state in ("full", "empty")]
    barriers += [(f"{x} {state}", f"{x}_{state.upper()}", stages) for x in "KV" for state in ("full", "empty")]
    barriers += [("V arrived", "V_ARRIVED", stages)] if problem.holes.reach else []
    barriers += [(f"numbers {state}", f"NUMBERS_{state.upper()}", NUMBER_STAGES) for state in ("full", "empty") if problem.holes.brought]
    barriers += [("tile full", "TILE_FULL", 1), ("tile empty", "TILE_EMPTY", 1)]
    pieces.append(("tile", "TILE", TILE_BYTES, told, 8))
    return lay_out(pieces, barriers, problem.arch.shared_bytes, [[("O", "O", q, 1, 1024)]] if shares else [])


def number_bytes(holes: Holes, tile: TilePlan) -> int:
    """The bytes of what a warp brings for a key tile, 4 a number; of each of four lanes together, or of distances twice, in banks apart."""
    of_lanes, begin = holes.of_lanes * 4 * (tile.block_n + 16), holes.score.begin
    if begin is None:
        return of_lanes
    if begin.along == "keys":
        return up(of_lanes + up(tile.block_n, 64) * 32 + 16, 1024)
    return of_lanes + 2 * 4 * (up(tile.block_m + tile.block_n, 32) + 16) + 16


def _output_clocks(known: Costs, pipe: PipelinePlan) -> float:
    """More a query tile, by the place that cannot be loaded before o has left it, and less where the next q is there already."""
    waits = {"keys": known["output_keys"], "queries": known["output_queries"]}
    return waits.get(pipe.output_place, 0) - (known["ahead"] if pipe.query_stages > 1 else 0)


def _ahead(holes: Holes, groups: int) -> int:
    """Registers a thread for what is computed or read ahead of the product, besides what elements hold."""
    rows = [read for read in holes.reads if read.by_row]
    if holes.gathers or any(read.flags or not read.shares_words for read in rows):
        return READ_REGISTERS
    if rows:
        return HALF_REGISTERS[groups]
    if holes.reads or holes.along.shared or (holes.brought_weight and not holes.score.begin):
        return COLUMN_REGISTERS
    return SCORE_REGISTERS if _computes(holes) or holes.mask.runs else 0


def _computes(holes: Holes) -> bool:
    """True if score or mask hold more of an element than s."""
    return holes.score.beside or holes.divides or holes.score.instructions.special > 1


def _arguments(spec: Spec, draft: Draft) -> Iterator[Argument]:
    columns = ROW_BYTES // spec.element.bytes
    keys = gcd(draft.tile.block_n, spec.page)  # of a box: of pages, no more than lie in one
    for name, rows in (("q", draft.tile.block_m), ("k", keys), ("v", keys)):
        yield Argument(name, "TensorMap", "tensor_map", name, (columns, rows), grouped=name == "q" and draft.dealing.grouped)
    yield from _output(spec, draft)
    yield from row_arguments(spec)
    yield from _dealing(draft.dealing.halves)
    yield from further_arguments(spec)


def _dealing(halves: bool) -> Iterator[Argument]:
    """The arguments by which query tiles are dealt."""
    dealt = "query tiles dealt beyond the first of each block"
    if halves:
        dealt = "query tiles dealt of each half of the heads"
        yield Argument(
            "halves", "const int*", "pointer", "halves", comment="of the L2, the nearer one of each of 256 multiprocessors; zeros will do"
        )
    yield Argument("counter", "int*", "pointer", "counter", comment=f"{dealt}; blocks that are done. Zero at launch, zero again after")


def _output(spec: Spec, draft: Draft) -> Iterator[Argument]:
    """o, by TMA, or from the registers; where keys are taken in shares, `combine` writes it."""
    if spec.out_element.operand == "native" and not (draft.dealing.shares or spec.geometry.packed):
        yield Argument("o", "TensorMap", "tensor_map", "o", (ROW_BYTES // spec.out_element.bytes, WARPGROUP_ROWS))
    else:
        yield Argument("o", f"{spec.out_element.cuda}*", "pointer", "o")
        yield Argument("o_strides", "Strides", "strides", "o")
