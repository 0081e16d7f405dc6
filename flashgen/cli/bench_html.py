"""The page of `flashgen bench --html`: the speeds of every case as a table and as charts, and who was not timed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flashgen.bench.modes import MODES
from flashgen.bench.peers import OURS
from flashgen.bench.results import panels
from flashgen.cli.bench import relative
from flashgen.cli.errors import unwritable
from flashgen.pages.chart import chart
from flashgen.render.page import page


def html(results: Mapping[str, Any]) -> str:
    """The page of a file of results; it fetches nothing."""
    found, mode = panels(results["rows"]), MODES[results["rows"][0].get("mode", "forward")] if results["rows"] else MODES["forward"]
    names = sorted({name for lines in found.values() for name in lines}, key=lambda name: (name != OURS, name))
    charts, rows = [], []
    for panel, lines in found.items():
        lengths = sorted({length for line in lines.values() for length, _ in line})
        drawn = {name: lines[name] for name in names if name in lines}
        against = "batch" if panel.by_batch else "keys" if mode.name == "decode" else "queries and keys"
        charts.append(chart(panel.title, (against, mode.unit), drawn, lengths, log_y=False))
        by_length = {name: dict(line) for name, line in lines.items()}
        for length in lengths:
            speeds = {name: by_length[name][length] for name in drawn if length in by_length[name]}
            rows.append((panel.title, length, [f"{speeds[name]:.0f}" if name in speeds else "" for name in names], relative(speeds)))
    return page("bench.html.j2", results=results, names=names, rows=rows, charts=charts, mode=mode)


def save(results: Mapping[str, Any], path: Path) -> None:
    """Writes the page. Raises CommandError."""
    try:
        path.write_text(html(results), encoding="utf-8")
    except OSError as error:
        raise unwritable(path, error) from None
