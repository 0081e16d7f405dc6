"""Time and memory against sequence length, both axes logarithmic."""

from io import BytesIO
from typing import Any

from flashgen.bench.figure import figure
from flashgen.ladder.climb import Climb
from flashgen.ladder.rungs import RUNGS

_COLORS = ("#7a7a7a", "#1f1f1f", "#c0392b", "#e67e22", "#b8860b", "#27824b", "#1f78b4", "#5b3fa6", "#d6409f")
_MARKS = "os^v<>DPX"
_KIB = 1024  # what no memory at all is drawn as


def draw(climb: Climb) -> Any:
    """A matplotlib figure. Raises BackendError without matplotlib."""
    drawn = figure(12, 5.6)
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axes = drawn.subplots(1, 2)
    for rung, color, mark in zip(RUNGS, _COLORS, _MARKS, strict=True):
        rows = [row for row in climb.rows if row.rung == rung.name]
        if not rows:
            continue
        lengths = [row.length for row in rows]
        for ax, heights in zip(axes, ([row.milliseconds for row in rows], [max(_KIB, row.memory) for row in rows]), strict=True):
            ax.plot(lengths, heights, marker=mark, color=color, label=rung.title, linewidth=1.8, markersize=6, alpha=0.9)
    shape = climb.shape
    where = climb.machine["gpu"] or "interpreter on the CPU"
    drawn.suptitle(f"{shape.batch} x {shape.heads} heads, head dim {shape.head_dim}, {shape.dtype}: {where}", fontsize=12)
    axes[0].set(title="time of a call", ylabel="milliseconds")
    axes[1].set(title="extra memory of a call (none is drawn as 1 KiB)", ylabel="bytes")
    for ax in axes:
        ax.set(xscale="log", yscale="log", xlabel="queries and keys", xticks=climb.lengths)
        ax.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:.0f}"))
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.grid(which="major", color="#dddddd")
    axes[1].yaxis.set_major_formatter(FuncFormatter(lambda n, _: _bytes(n)))
    handles, labels = axes[0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=10)
    return drawn


def _bytes(n: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= size:
            return f"{n / size:.3g} {unit}"
    return f"{n:.0f} B"


def png(climb: Climb) -> bytes:
    """The picture as PNG."""
    buffer = BytesIO()
    draw(climb).savefig(buffer, format="png", dpi=130)
    return buffer.getvalue()
