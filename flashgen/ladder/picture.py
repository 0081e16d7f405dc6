"""Time and memory against sequence length as a PNG, both axes logarithmic; no time where the interpreter ran."""

from io import BytesIO
from typing import Any

from flashgen.bench.figure import figure
from flashgen.ladder.climb import Climb
from flashgen.ladder.rungs import RUNGS

_COLORS = ("#7a7a7a", "#1f1f1f", "#c0392b", "#e67e22", "#b8860b", "#27824b", "#1f78b4", "#5b3fa6", "#d6409f")
_MARKS = "os^v<>DPX"
LEAST = 1024  # what no memory at all is drawn as


def draw(climb: Climb) -> Any:
    """A matplotlib figure. Raises BackendError without matplotlib."""
    drawn = figure(12, 5.6)
    from matplotlib.ticker import FuncFormatter, NullFormatter

    memory, *time = drawn.subplots(1, 2 if climb.on_gpu else 1, squeeze=False)[0, ::-1]
    for rung, color, mark in zip(RUNGS, _COLORS, _MARKS, strict=True):
        rows = [row for row in climb.rows if row.rung == rung.name]
        looks = {"marker": mark, "color": color, "linewidth": 1.8, "markersize": 6, "alpha": 0.9}
        if rows:
            lengths = [row.length for row in rows]
            memory.plot(lengths, [max(LEAST, row.memory) for row in rows], label=rung.title, **looks)
            for ax in time:
                ax.plot(lengths, [row.milliseconds for row in rows], **looks)
    shape = climb.shape
    where = climb.machine["gpu"] or "interpreter on the CPU"
    drawn.suptitle(f"{shape.batch} x {shape.heads} heads, head dim {shape.head_dim}, {shape.dtype}: {where}", fontsize=12)
    memory.set(title="extra memory of a call (none is drawn as 1 KiB)", ylabel="bytes")
    for ax in time:
        ax.set(title="time of a call", ylabel="milliseconds")
    for ax in (memory, *time):
        ax.set(xscale="log", yscale="log", xlabel="queries and keys", xticks=climb.lengths)
        ax.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:.0f}"))
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.grid(which="major", color="#dddddd")
    memory.yaxis.set_major_formatter(FuncFormatter(lambda n, _: in_bytes(n)))
    handles, labels = memory.get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=10)
    return drawn


def in_bytes(n: float) -> str:
    """A number of bytes in words.

    >>> in_bytes(2_100_000)
    '2.1 MB'
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= size:
            return f"{n / size:.3g} {unit}"
    return f"{n:.0f} B"


def png(climb: Climb) -> bytes:
    """The picture as PNG."""
    buffer = BytesIO()
    draw(climb).savefig(buffer, format="png", dpi=130)
    return buffer.getvalue()
