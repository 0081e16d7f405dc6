"""`flashgen bench`: cases measured under a progress bar, kept after each; a table, a picture, a file."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from flashgen.bench import Case, DeviceClock, Results, implementations, run
from flashgen.bench.figure import MISSING, can_draw
from flashgen.bench.gradients import differentiating
from flashgen.bench.modes import MODES, mode_of
from flashgen.bench.peers import OURS, Implementation, is_peer
from flashgen.bench.results import card_name, environment, save_json, save_plot, to_json
from flashgen.cli.errors import CommandError, unwritable
from flashgen.cli.terminal import console, plain, table
from flashgen.errors import did_you_mean
from flashgen.runtime import arrays, device
from flashgen.spec import Spec


def cases(specs: Sequence[Spec], lengths: Sequence[int], mode: str = "forward") -> tuple[str, list[Case]]:
    """The suite and its cases: the specs at these lengths; without specs, those of the mode, of the forward the grid."""
    found = MODES[mode].cases(specs, lengths)
    return (mode if mode != "forward" else "specs" if specs else "grid"), found


def chosen(names: Sequence[str], mode: str = "forward") -> list[Implementation]:
    """flashgen and these peers; without names, all that are installed. Raises CommandError for one that is not, and without a GPU."""
    if reason := device.missing():
        raise CommandError(f"{reason}. bench times kernels on a GPU; check and ladder run without one, and doctor says what to install")
    of_mode = differentiating if mode == "backward" else functools.partial(implementations, packed=mode == "packed")
    found = {one.name: one for one in of_mode(device.current().arch)}
    for name in names:
        if name not in found:
            raise CommandError(f"--peer {name}: nothing installed is called so; {did_you_mean(name, found)}")
    return [one for one in found.values() if not names or one.name in (OURS, *names)]


Jobs = Sequence[tuple[Sequence[Case], Sequence[Implementation]]]


def bench(suite: str, jobs: Jobs, out: Path) -> tuple[dict[str, Any], Results]:
    """Measures, and keeps what is known in out/<card>.json and .png after each case. Raises BackendError, CommandError."""
    found, clock, results = environment(), DeviceClock(), Results()
    path = out / f"{'' if suite == 'grid' else suite + '_'}{card_name(found)}.json"
    errors = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as progress:
        task = progress.add_task("", total=sum(len(wanted) for wanted, _ in jobs))

        def advance(case: Case) -> None:
            progress.update(task, advance=1, description=case.name)
            _save(to_json(results, suite, found), path)

        for wanted, contenders in jobs:
            run(wanted, contenders, clock, arrays.cupy(), results, advance=advance)
    return to_json(results, suite, found), results


def _save(results: dict[str, Any], path: Path) -> None:
    try:
        save_json(results, path)
        if can_draw():
            save_plot(results, path.with_suffix(".png"))
    except OSError as error:
        raise unwritable(error.filename, error) from None


def report(found: dict[str, Any], results: Results) -> None:
    """The speeds, a line a case; how flashgen does against the best of the others; host time; who was not timed."""
    out = console()
    names = list(dict.fromkeys(one.implementation for one in results.measured))
    rows = table("", *names, "of the best peer")
    for column in rows.columns[1:]:
        column.justify = "right"
    speeds: dict[str, dict[str, float]] = {}
    for one in results.measured:
        speeds.setdefault(one.case.name, {})[one.implementation] = one.rate
    for name, speed in speeds.items():
        rows.add_row(*plain([name, *(f"{speed[n]:.0f}" if n in speed else "" for n in names), relative(speed)]))
    mode = mode_of(results.measured[0].case) if results.measured else MODES["forward"]
    out.print(Text(f"{found['gpu']}: {mode.name}, {mode.unit}", style="bold"))
    out.print(rows)
    out.print(*plain([f"host time of a call, microseconds: {', '.join(f'{n} {us:.0f}' for n, us in found['host_us'].items())}"]))
    for reason, where in _reasons(results).items():
        out.print(*plain([f"not timed: {reason} ({where[0]}{f' and {len(where) - 1} more' if len(where) > 1 else ''})"]))

    if not can_draw():
        out.print(*plain([f"no picture: {MISSING}"]))


def relative(speed: dict[str, float]) -> str:
    """flashgen's speed over the best of the others."""
    others = [x for name, x in speed.items() if is_peer(name)]
    return f"{speed[OURS] / max(others):.2f}" if others and OURS in speed else ""


def _reasons(results: Results) -> dict[str, list[str]]:
    """The cases that were not timed, by implementation and reason."""
    found: dict[str, list[str]] = {}
    for one in results.skipped:
        found.setdefault(f"{one.implementation}: {one.reason}", []).append(one.case)
    return found


def failed(results: Results) -> bool:
    """True if flashgen itself did not run somewhere, or one of its kernels was wrong."""
    return any(one.implementation == OURS or (one.wrong and not is_peer(one.implementation)) for one in results.skipped)
