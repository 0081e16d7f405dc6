"""`flashgen ladder`: runs every rung, prints the table, saves picture and page."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from flashgen.bench.figure import MISSING, can_draw
from flashgen.cli.errors import unwritable
from flashgen.cli.terminal import console, plain, table
from flashgen.ladder import RUNGS, Climb, Shape, climb, write
from flashgen.runtime import device

SHORTEST, LENGTHS = 256, 4  # of the picture: halved so often, down to so many queries and keys
INTERPRETED = {"length": 1024, "heads": 2, "batch": 1}  # at most, in the interpreter, which takes minutes for more


def run(shape: Shape) -> Climb:
    """All rungs at the length asked for and its halves; without a GPU at INTERPRETED. Raises PlanError, CompileError, CallError."""
    if device.missing():
        shape = replace(shape, **{name: min(most, getattr(shape, name)) for name, most in INTERPRETED.items()})
    lengths = [shape.length >> n for n in reversed(range(LENGTHS)) if n == 0 or shape.length >> n >= SHORTEST]
    errors = Console(stderr=True)
    columns = (BarColumn(), TextColumn("{task.completed} of {task.total}"), TextColumn("{task.description}"))
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as progress:
        task = progress.add_task("", total=len(lengths) * len(RUNGS))
        return climb(shape, lengths, lambda title: progress.update(task, advance=1, description=title))


def save(found: Climb, out: Path) -> list[Path]:
    """Writes the page, and the picture where matplotlib is. Raises CommandError."""
    try:
        return write(found, out)
    except OSError as error:
        raise unwritable(out, error) from None


def show(found: Climb, paths: Sequence[Path]) -> None:
    """Prints the table, and where page and picture are."""
    terminal, shape = console(), found.shape
    if not found.on_gpu:
        terminal.print(*plain([f"{found.machine['note']}. Values and counts are those of the kernels, times are not."]))
    where = found.machine["gpu"] or "interpreter"
    terminal.print(
        f"{shape.batch} x {shape.heads} heads, {shape.length} queries and keys, head dim {shape.head_dim}, {shape.dtype}: {where}"
    )
    columns = ("ms", "times as fast", "extra MB", "read MB", "written MB", "exponentials", "error")
    rows = table("", *columns, right=columns)
    at = found.of(shape.length)
    for rung in RUNGS:
        if row := at.get(rung.name):
            counted = [f"{row.counted[key] / scale:{digits}}" if row.counted else "" for key, scale, digits in _COUNTED]
            factor = found.speedup(row)
            measured = [f"{row.milliseconds:.3f}", f"{factor:.1f}" if factor else "", f"{row.memory / 1e6:.1f}"]
            rows.add_row(*plain([rung.title, *measured, *counted, f"{row.error:.1e}"]))
    terminal.print(rows)
    terminal.print("times as fast: as standard attention in three kernels")
    for one in found.absent:
        terminal.print(*plain([f"{one.rung} did not run at {one.length}: {one.why}"]))
    for path in paths:
        terminal.print(*plain([path]))
    if not can_draw():
        terminal.print(*plain([f"no ladder.png: {MISSING}"]))


_COUNTED = (("read", 1e6, ".0f"), ("written", 1e6, ".0f"), ("exponentials", 1, ".2e"))
