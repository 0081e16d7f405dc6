"""Describes a program, a line a concern: the banner of the emitted file and the top of `flashgen explain`."""

from collections.abc import Iterator

from flashgen.dtypes import float32_text
from flashgen.expr.tiles.ranges import TileRanges
from flashgen.plan.backward_kernel import Backward
from flashgen.plan.geometry import shape_words
from flashgen.plan.kernel import WARPGROUP_ROWS, DealingPlan
from flashgen.plan.kernels.arguments import LENGTHS
from flashgen.plan.program import Program
from flashgen.theory.schedule import schedule_text


def describe(program: Program) -> list[tuple[str, str]]:
    """Label and text of each line."""
    tile = program.main.tile
    regions = [region for region in program.regions if not region.barrier]
    shared = " | ".join(f"{r.name} {f'{r.count} x ' if r.count > 1 else ''}{r.bytes}" for r in regions)
    taken, most = max(kernel.smem.bytes for kernel in program.tiled), program.main.smem.capacity
    return [
        ("arrays", _arrays(program)),
        *_lengths(program),
        *_embedding(program),
        ("score", program.holes.score.text),
        ("mask", program.holes.mask.text),
        *([("weight", program.holes.weight.text)] if program.holes.weight else []),
        *([("output", program.holes.output.text)] if program.holes.output else []),
        *([("planes", program.planes.text)] if program.planes else []),
        ("tile", f"{tile.block_m} {_rows(program)} x {tile.block_n} keys    {_workers(program)}"),
        *(_backward(program, program.main) if isinstance(program.main, Backward) else _forward(program)),
        ("shared", f"{shared} | {program.main.pipeline.stages_text}    {taken} of {most} bytes"),
    ]


def _rows(program: Program) -> str:
    return "query rows of a group's heads" if program.dealing.grouped else "queries"


def _lengths(program: Program) -> list[tuple[str, str]]:
    given = [f"{name} int32 {LENGTHS[name]}" for name, _ in program.spec.geometry.lengths]
    return [("lengths", ", ".join(given))] if given else []


def _embedding(program: Program) -> Iterator[tuple[str, str]]:
    """Tells how q and k change before they meet."""
    if norm := program.spec.norm:
        learned = [f"{role} times {name}" for role in norm.of if (name := norm.columns(role))]
        told = "".join(f", {each}" for each in learned)
        yield "norm", f"of {' and '.join(norm.of)}: x / sqrt(mean(x^2) + {float32_text(norm.eps)}){told}"
    if rotary := program.spec.rotary:
        tables = " and ".join(name for role in rotary.of if (name := rotary.table(role)))
        angles = f"angles of {tables}" if tables else f"base {float32_text(rotary.base or 0.0)}"
        yield "rotary", f"of {' and '.join(rotary.of)}: {rotary.columns} columns, {rotary.kind}, {angles}"


def _forward(program: Program) -> list[tuple[str, str]]:
    keys = f"of a query tile: {_tiles_taken(program)}{'; a block takes a share of them, and combine merges' if program.combine else ''}"
    return [("keys", keys), ("order", _order(program)), ("softmax", schedule_text(program.softmax))]


def _backward(program: Program, main: Backward) -> list[tuple[str, str]]:
    order = "the first key tiles first, in sections of heads that share the L2" if main.dealing.longest_first else "head by head"
    turns = "in turns: a number a query tile says whose comes next, and query tiles come downwards, so that few wait"
    how = turns if main.sums_order == "own" else "in any order"
    added = f"dq in float32 in memory, added to by the blocks of all key tiles {how}"
    added += ", rounded by warps that have nothing to load or multiply" if main.finish == "beside" else ""
    alone = f"dq in those of a kernel of its own, a block a query tile: {_tiles_taken(program)}" if program.attentions else added
    shared = f", of each of {main.head_shares} shares of the query heads" if main.head_shares > 1 else ""
    return [
        ("queries", f"of a key tile, for every query head that shares it: {_ranges_of(main.ranges)}{_listed(program, main.dealing)}"),
        ("order", f"{_taken(main)}, {order}"),
        ("sums", f"{'dk and dv in registers of a block each' if main.grid.cluster > 1 else 'dk, dv in registers'}{shared}; {alone}"),
    ]


def _taken(main: Backward) -> str:
    if main.dealing.counter:
        return "key tiles dealt by a counter"
    return "a cluster a key tile" if main.grid.cluster > 1 else "a block a key tile"


def _arrays(program: Program) -> str:
    """The arrays of a call, their shapes and dtypes."""
    spec = program.spec
    shapes = (shape_words(spec, role, heads=heads, columns="{}") for role, heads in (("q", "Hq"), ("k", "Hq / group")))
    rows, keys = (f"[{', '.join(shape)}]" for shape in shapes)
    qk, v = spec.head_dim.qk, spec.head_dim.v
    other = spec.out_dtype
    arrays = (
        f"q {rows.format(qk)} {spec.dtype}    k {keys.format(qk)}    v {keys.format(v)}    o {rows.format(v)} {other}"
        if other
        else f"q, o {rows.format(qk)} {spec.dtype}    k, v {keys.format(qk)}"
        if qk == v
        else f"q {rows.format(qk)} {spec.dtype}    o {rows.format(v)}    k {keys.format(qk)}    v {keys.format(v)}"
    )
    shape = "[Hq, total_q]" if spec.order.packed else "[B, Hq, Sq]"
    return f"{arrays}    lse {shape} float32, natural log" if "lse" in spec.outputs else arrays


def _workers(program: Program) -> str:
    workers = program.main.workers
    if workers.load_warps:
        turns = ", in turns" if workers.turns else ""
        others = "1 loads and splits values, 1 splits keys" if program.main.pipeline.in_place else "1 loads"
        rows = "keys" if isinstance(program.main, Backward) else "query rows"
        blocks = f"in each of {program.main.grid.cluster} blocks of a cluster " if program.main.grid.cluster > 1 else ""
        return f"{blocks}{workers.warpgroups} warpgroups compute {WARPGROUP_ROWS} {rows} each{turns}, {others}"
    if workers.in_cluster:
        blocks = f"in each of {program.main.grid.cluster} blocks of a cluster"
        own = "a strand" if workers.each == 1 else f"{workers.each} strands"
        return f"{workers.warps} warps {blocks} compute them over {own} of the keys each"
    if workers.beside > 1:
        return f"{workers.warps} warps compute them over a strand of the block's keys each, and meet at the end"
    return f"{workers.warps} warps compute {program.main.tile.block_m // workers.warps} query rows each and share the loads"


def _tiles_taken(program: Program) -> str:
    if program.softmax.materialize:
        return "all tiles, the mask tested in each"
    order = "outside the query tiles" if program.softmax.outer == "kv" else "taken downwards"
    return f"{_ranges_of(program.attention.ranges)}{_listed(program, program.dealing)}, {order}"


def _listed(program: Program, dealing: DealingPlan) -> str:
    """The words for lists of tiles, where there are some."""
    bits = ", which leaves a bit for the mask" if program.holes.mask.bits else ""
    of_mask = f"; of these, those that some row sees, by a look at each pair{bits}" if dealing.listed else ""
    return f"; of these, {program.spec.blocks.text}" if program.spec.blocks else of_mask


def _ranges_of(ranges: TileRanges) -> str:
    masked = [loop.masked for loop in ranges.loops]
    kinds = ", ".join("masked" if m else "unmasked" for m in masked)
    pairings = ", ".join(pairing.text for pairing in ranges.pairings)
    how = f"by extents of {pairings}" if pairings else "in closed form"
    return f"{len(masked)} range{'s' if len(masked) > 1 else ''} of tiles {how} ({kinds})"


def _order(program: Program) -> str:
    dealing, tiles = program.attention.dealing, program.attention.tile.query_tiles
    first = "longest query tiles first, in sections of heads that share the L2" if dealing.longest_first else "head by head"
    one = "a cluster a query tile" if program.attention.workers.in_cluster else "a block a query tile"
    taken = one if tiles == 1 else f"{tiles} query tiles a block"
    return f"{first}, {'dealt by a counter' if dealing.counter else taken}"
