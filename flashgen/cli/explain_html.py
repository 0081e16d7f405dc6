"""The page of `flashgen explain --html`: everything that the terminal is told, with pictures, and the emitted kernel beside its plan."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flashgen.arch import Arch
from flashgen.cli.errors import unwritable
from flashgen.cli.explain import Explanation, heads, roofline, work_rows
from flashgen.cli.gradients import BackwardWork
from flashgen.cli.show import text_of
from flashgen.cli.work import Work, coarser
from flashgen.expr.tiles.ranges import FULL, PARTIAL
from flashgen.pages.chart import Chart, chart
from flashgen.pages.listing import Listing, Part, listing
from flashgen.pages.tiles import boxes, grid, pieces
from flashgen.pages.timeline import KINDS, timeline
from flashgen.plan import Program
from flashgen.plan.backward_kernel import Backward
from flashgen.render import render
from flashgen.render.describe import describe
from flashgen.render.page import page

MOST_CELLS = 128  # rows and columns of the mask's picture
MOST_WIDE = 4  # times as wide as high, or the other way round
LINES_UP_TO = 64  # of them, up to which lines tell tiles apart

# What a line of the plan, or a reason, becomes in the emitted text: names that may be defined there, the first that is.
BECOMES: dict[str, tuple[str, ...]] = {
    "arrays": ("Params",),
    "lengths": ("Sequence",),
    "norm": ("embed_q", "embed_k"),
    "rotary": ("FREQUENCIES", "embed_q", "embed_k"),
    "embedding": ("embed_q", "embed_k"),
    "score": ("value", "Variant"),
    "mask": ("keep", "Variant"),
    "weight": ("weigh", "Variant"),
    "output": ("finished", "Variant"),
    "bias": ("row_bias",),
    "start": ("column_slope",),
    "tensor": ("copy_rows",),
    "v_slices": ("Work",),
    "lists": ("Ranges", "key_lists"),
    "planes": ("PLANES", "QueryRows"),
    "tile": ("BLOCK_M",),
    "keys": ("Work", "QueryTile"),
    "queries": ("find_rows", "Rows", "run"),
    "order": ("Dealer", "Work"),
    "softmax": ("softmax", "weights"),
    "sums": ("run",),
    "rescale": ("raise", "rescale_rows", "softmax"),
    "output_place": ("write",),
    "instructions": ("exponentials", "softmax"),
    "functions": ("tanh", "Variant"),
    "precision": ("PLANES", "QueryRows"),
    "in_place": ("split_keys_values",),
    "narrow": ("own_last", "Work"),
    "ranges": ("find_keys", "Work"),
    "halves": ("Dealer",),
    "split": ("combine",),
    "rows": ("Work",),
    "multiplied": ("exponentials",),
}


def html(found: Explanation) -> str:
    """The page of an explanation; it fetches nothing."""
    work, chosen = found.work, found.program
    kernels = [_kernel(chosen, "forward", work)]
    if found.backward:
        kernels.append(_kernel(found.backward[0], "backward", found.backward[1]))
    counts = [(what, formula, f"{number:,}") for what, formula, number in found.counted]
    return page(
        "explain.html.j2",
        program=chosen,
        yaml=text_of(chosen.spec, "spec", chosen.arch.name),
        work=work,
        heads=heads(work),
        rows=work_rows(found),
        counts=counts,
        mask=_mask(found),
        kernels=kernels,
    )


def save(found: Explanation, path: Path) -> None:
    """Writes the page. Raises CommandError."""
    try:
        path.write_text(html(found), encoding="utf-8")
    except OSError as error:
        raise unwritable(path, error) from None


def _kernel(program: Program, name: str, work: Work | BackwardWork) -> dict[str, Any]:
    """The chapter of a program: its plan and reasons with their places in the text, its clocks, its memory, its roofline."""
    text = listing(render(program).text) if program.launched else listing("")
    time = timeline(program)

    def place(names: Iterable[str]) -> str:
        """The anchor of the line that defines the first of these names that the text has; empty where it has none."""
        line = text.line(names)
        return f"{name}-{line}" if line else ""

    plan = describe(program) if program.launched else [("tile", f"{program.main.tile.text}, in NumPy")]
    names = {**BECOMES, "shared": tuple(region.symbol for region in program.main.smem.regions)}
    became = {label: text.line(names.get(label, ())) for label, _ in plan}
    return {
        "name": name,
        "program": program,
        "plan": [(label, said, place(names.get(label, ()))) for label, said in plan],
        "reasons": [(label, said, place(names.get(label, ()))) for label, said in program.decision.reasons],
        "clocks": _clocks(program),
        "rejected": program.decision.rejected,
        "roofline": _roofline(program, work),
        "timeline": time,
        "lanes": [(lane, place(lane.functions)) for lane in time.lanes] if time else [],
        "kinds": KINDS,
        "pieces": [(piece, place([piece.symbol])) for piece in pieces(program.main.smem)],
        "parts": _parts(text, became),
    }


def _clocks(program: Program) -> list[tuple[str, str, float]]:
    """The resources that take clocks of a key step, the clocks, and how much that is of the step in percent."""
    found = {what: clocks for what, clocks in program.decision.cost if what != "total"}
    return [(what, f"{clocks:,.0f}", round(100 * clocks / found["step"], 1)) for what, clocks in found.items()]


def _parts(text: Listing, became: Mapping[str, int | None]) -> list[tuple[Part, list[str]]]:
    """The parts of the text, each with the lines of the plan that become something in it."""
    return [(part, [label for label, line in became.items() if line and text.part(line) == part.title]) for part in text.parts if part.rows]


def _roofline(program: Program, work: Work | BackwardWork) -> Chart:
    """The roof of the card by operations a byte, and where this work is; a key step as its clocks say."""
    roof, peak = roofline(work, program.arch), peak_flops(program.arch)
    bandwidth, intensity = peak / roof["ridge"], roof["intensity"]
    low, high = min(1.0, intensity or 1.0), max(1000.0, 2 * roof["ridge"], intensity)
    lines = {"the roof": [(low, low * bandwidth / 1e12), (roof["ridge"], peak / 1e12), (high, peak / 1e12)]}
    if intensity:
        most = min(peak, intensity * bandwidth)
        lines["this work, at most"] = [(intensity, most / 1e12)]
        if planned := _planned_flops(program):
            lines["a key step as planned"] = [(intensity, min(planned, most) / 1e12)]
    return chart("Roofline", ("FLOP a byte of arrays", "TFLOP/s"), lines)


def peak_flops(arch: Arch) -> float:
    """FLOP a second of the tensor cores of the architecture's common card."""
    return arch.mma_flops * arch.multiprocessors * arch.clock_ghz * 1e9


def _planned_flops(program: Program) -> float | None:
    """FLOP a second of the products of a key step, by the cost model's clocks of it."""
    step, tile = dict(program.decision.cost).get("step"), program.main.tile
    if not step or not program.launched:
        return None
    columns = 3 * tile.qk_columns + 2 * tile.v_columns if isinstance(program.main, Backward) else tile.qk_columns + tile.v_columns
    return 2 * tile.block_m * tile.block_n * columns / step * program.arch.multiprocessors * program.arch.clock_ghz * 1e9


def _mask(found: Explanation) -> dict[str, Any]:
    """The picture of the mask: its cells by class, and how many tiles a cell stands for."""
    whole, tile, work = found.work.picture, found.program.attention.tile, found.work
    down, across = (max(1, -(-n // MOST_CELLS)) for n in whole.classes.shape)
    classes = coarser(whole.classes, down, across)
    rows, columns = classes.shape
    cell = whole.cell[0] * down, whole.cell[1] * across
    return {
        "size": (columns, rows),
        "partial": boxes(classes, PARTIAL),
        "full": boxes(classes, FULL),
        "lines": grid(rows, columns) if max(rows, columns) <= LINES_UP_TO else "",
        "shape": f"{min(MOST_WIDE, max(1 / MOST_WIDE, work.kv_len / work.q_len)):.3f}",
        "seen": (work.kv_len / (cell[1] * tile.block_n), work.q_len / (cell[0] * tile.block_m)),  # cells, without what ends beyond
        "cell": f"{cell[0] * tile.block_m} queries x {cell[1] * tile.block_n} keys",
    }
