"""The page that tells the story: one HTML file that needs no network."""

from pathlib import Path
from typing import Any

from flashgen.bench.figure import can_draw
from flashgen.ladder.climb import Climb
from flashgen.ladder.gradients import memory
from flashgen.ladder.loops import inner_loops
from flashgen.ladder.overflow import overflow
from flashgen.ladder.picture import LEAST, in_bytes, png
from flashgen.ladder.rungs import RUNGS, Rung
from flashgen.pages.chart import Chart, chart
from flashgen.plan import plan
from flashgen.plan.counts import FORMULAS, WORDS, counts
from flashgen.render.page import page
from flashgen.theory.derive import Derivation, derive, mathml

SLOWER = 1.03  # times the rung below, beyond which the page says why
LONG = 2048  # queries and keys from which on it does


def write(climb: Climb, folder: Path) -> list[Path]:
    """Writes ladder.html, and ladder.png where matplotlib is; their paths. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "ladder.html"]
    paths[0].write_text(html(climb), encoding="utf-8")
    if can_draw():
        paths.append(folder / "ladder.png")
        paths[1].write_bytes(png(climb))
    return paths


def html(climb: Climb) -> str:
    """The page."""
    rows = climb.of(climb.lengths[-1])
    rungs = [rung for rung in RUNGS if rung.name in rows]
    return page(
        "ladder.html.j2",
        climb=climb,
        rungs=[_rung(rung, below, climb) for rung, below in zip(rungs, [None, *rungs], strict=False)],
        overflow=overflow(),
        backward=_derivation(derive("backward")),
        memory=memory(climb.shape, climb.lengths, rows[rungs[-1].name].arch if climb.on_gpu else "sm_90a"),
        words=[(mathml(symbol), meaning) for symbol, meaning in WORDS.items()],
        charts=charts(climb),
    )


def charts(climb: Climb) -> list[Chart]:
    """Time and memory against length; no time where the interpreter ran, whose times are not those of kernels."""
    rows = {rung.title: [row for row in climb.rows if row.rung == rung.name] for rung in RUNGS}
    rows = {title: found for title, found in rows.items() if found}
    memory = {title: [(row.length, max(LEAST, row.memory)) for row in found] for title, found in rows.items()}
    axes = "queries and keys"
    drawn = [chart("Extra memory of a call (none is drawn as 1 KiB)", (axes, "bytes"), memory, climb.lengths, text=in_bytes)]
    if climb.on_gpu:
        times = {title: [(row.length, row.milliseconds) for row in found] for title, found in rows.items()}
        drawn.insert(0, chart("Time of a call", (axes, "milliseconds"), times, climb.lengths))
    return drawn


def _rung(rung: Rung, below: Rung | None, climb: Climb) -> dict[str, Any]:
    """The entries of a rung on the page, by name."""
    row = climb.of(climb.lengths[-1])[rung.name]
    shown = {
        "rung": rung,
        "row": row,
        "speedup": climb.speedup(row),
        "derivation": None if below and below.derivation == rung.derivation else _derivation(derive(rung.derivation)),
        "code": inner_loops(rung, row.arch if climb.on_gpu else rung.arch(None), climb.shape) if rung.schedule else "",
        "formulas": [],
        "at_most": False,
        "slower": _slower(rung, below, climb),
    }
    if rung.schedule:
        found = counts(plan(rung.spec(climb.shape.head_dim, climb.shape.dtype), row.arch))
        shown["formulas"] = [(what, mathml(getattr(found, name)), f"{row.counted[name]:,}") for name, what in FORMULAS.items()]
        shown["at_most"] = found.at_most
    return shown


def _derivation(derivation: Derivation) -> dict[str, Any]:
    steps = [(mathml(step.equation), step.why) for step in derivation.steps]
    return {"steps": steps, "recurrences": [mathml(e) for e in derivation.recurrences], "latex": derivation.latex}


def _slower(rung: Rung, below: Rung | None, climb: Climb) -> str:
    """The lengths at which a rung is slower than the one below, as far as they count, and the reason."""
    if below is None:
        return ""
    pairs = [(length, climb.of(length)) for length in climb.lengths if length >= LONG]
    slower = [(n, at[rung.name].milliseconds / at[below.name].milliseconds) for n, at in pairs if at.keys() >= {rung.name, below.name}]
    found = [f"{n}: {factor:.2f} times" for n, factor in slower if factor > SLOWER]
    if not found:
        return ""
    reason = rung.slower if climb.on_gpu else "the interpreter shows values, not speed"
    return f"Slower than the rung below ({', '.join(found)}): {reason}."
