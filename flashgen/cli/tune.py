"""`flashgen tune`: candidates measured under a progress bar, the fastest kept after each round."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from flashgen.bench import Case, DeviceClock
from flashgen.cli.errors import CommandError
from flashgen.cli.terminal import console, plain, table
from flashgen.plan.costs.model import cards
from flashgen.runtime import arrays, device
from flashgen.tune import ROUNDS, Tuning, parts
from flashgen.tune import tune as measure


def tune(wanted: Mapping[int, Sequence[Case]]) -> tuple[list[Tuning], bool]:
    """The tunings found, and True if all rounds ran; Ctrl-C ends it with what is kept.

    Raises BackendError, PlanError, CompileError, and CommandError without a GPU.
    """
    if reason := device.missing():
        raise CommandError(f"{reason}. tune times kernels on a GPU; without one the planner's choice stands, as explain tells it")
    clock, card, errors = DeviceClock(), device.current(), Console(stderr=True)
    found: dict[tuple[int, str], Tuning] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("rounds"), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as progress:
        task = progress.add_task("compiling candidates", total=len(wanted) * len(parts(wanted)) * ROUNDS)

        def advance(latest: Tuning) -> None:
            found[latest.length, latest.part] = latest
            progress.update(task, advance=1, description=f"{latest.part}, up to {latest.length} keys: {latest.choice}")

        try:
            measure(wanted, card.arch, card.name, clock, arrays.cupy(), advance)
        except KeyboardInterrupt:
            return list(found.values()), False
    return list(found.values()), True


def unknown(card: str) -> str:
    """A sentence where the cost model has no numbers of this card; else nothing.

    >>> unknown("NVIDIA H100 80GB HBM3")
    ''
    """
    if card in cards():
        return ""
    return f"the cost model has no numbers of {card}, but those of {', '.join(cards())}: benchmarks/fit.py of a checkout measures them"


def report(found: Sequence[Tuning], complete: bool, card: str) -> None:
    """A table a class of lengths, the fastest first, what the cost model's choice loses, and whether it has numbers of the card."""
    out = console()
    for one in found:
        lengths = list(next(iter(one.ms.values())))
        rows = table("candidate", *(f"ms at {n}" for n in lengths), "times the fastest", "")
        for name, score in one.scores.items():
            note = "kept" if name == one.choice else "the cost model's" if name == one.planned else ""
            rows.add_row(*plain((name, *(f"{one.ms[name][n]:.4f}" for n in lengths), f"{score:.3f}", note)))
        out.print(rows)
        for name in one.wrong:
            out.print(*plain([f"{name} is wrong: never chosen"]))
        lost = "wrong" if one.loss is None else f"{one.loss:.1%} slower than the fastest"
        out.print(*plain([f"{one.part}, planned for {one.length} keys: the cost model's choice {one.planned} is {lost}"]))
    if said := unknown(card):
        out.print(*plain([said]))
    if not complete:
        out.print("interrupted: what is shown is kept" if found else "interrupted before the first round: kernels stay compiled")
