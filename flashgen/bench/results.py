"""Results as a file, with what they were measured on, and as a picture."""

import json
import math
import subprocess
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from flashgen.bench.figure import figure
from flashgen.bench.modes import MODES
from flashgen.bench.peers import OURS
from flashgen.bench.run import Results
from flashgen.runtime import device

_PACKAGES = (
    "flashgen",
    "cupy-cuda13x",
    "cupy-cuda12x",
    "torch",
    "triton",
    "nvidia-cudnn-cu13",
    "flash-attn",
    "flash-attn-3",
    "flash-attn-4",
)


def environment() -> dict[str, Any]:
    """The card, its driver, versions, the commit. Raises BackendError without a GPU."""
    return {
        "gpu": device.current().name,
        "driver": _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").partition("\n")[0],
        "versions": {name: found for name in _PACKAGES if (found := _version(name))},
        "commit": _commit(),
    }


def _commit() -> str:
    """The commit of the checkout that this file belongs to; empty if flashgen is installed, whatever repository lies around it."""
    here, name = str(Path(__file__).parent), Path(__file__).name
    return _output("git", "-C", here, "rev-parse", "HEAD")[:12] if _output("git", "-C", here, "ls-files", name) else ""


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _output(*command: str) -> str:
    """The output of a command; empty if it fails or is not there."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def to_json(results: Results, suite: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """`found` and the rows as JSON; beside them the host time of a call in microseconds, and the cases that were not timed."""
    host: dict[str, float] = {}
    for one in results.measured:  # the least of all cases: after a few calls in a row the host's caches are cold
        host[one.implementation] = min(one.host_us, host.get(one.implementation, math.inf))
    return {
        **found,
        "host_us": {name: round(us, 1) for name, us in host.items()},
        "skipped": [{"case": s.case, "implementation": s.implementation, "reason": s.reason} for s in results.skipped],
        "rows": [one.row(suite) for one in results.measured],
    }


def card_name(found: Mapping[str, Any]) -> str:
    """The card, fit for a file's name."""
    return str(found["gpu"]).replace(" ", "_").replace("/", "_")


def save_json(results: Mapping[str, Any], path: Path) -> None:
    """One row a line. Raises OSError."""
    rows = ",\n  ".join(json.dumps(row) for row in results["rows"])
    head = json.dumps({k: v for k, v in results.items() if k != "rows"}, indent=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{head.removesuffix("}").rstrip()},\n "rows": [\n  {rows}\n ]\n}}\n')


def kept_rows(path: Path, found: Mapping[str, Any], again: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    """The rows of a file, where it is of the same card, driver and commit, but those that are measured again: a suite may run in parts.
    Raises OSError, and ValueError for a file that `save_json` did not write."""
    before = json.loads(path.read_text()) if path.exists() else {"rows": []}
    same = all(before.get(name) == found[name] for name in ("gpu", "driver", "commit"))
    return [row for row in before["rows"] if same and not again(row)]


class Panel(NamedTuple):
    """A picture of speeds: its title, and whether they stand over the batch, as they do over lengths otherwise."""

    title: str
    by_batch: bool = False


def panels(rows: list[dict[str, Any]]) -> dict[Panel, dict[str, list[tuple[int, float]]]]:
    """A panel a head dim, mask and dtype; in it, by implementation, the speed at each length. Where one query meets many keys, a panel
    each batch at all lengths, and each length at all batches."""
    found: dict[Panel, dict[str, list[tuple[int, float]]]] = {}
    for row in rows:
        title = f"head dim {row['head_dim']}, {row.get('spec') or ('causal' if row['causal'] else 'full')}, {row['dtype']}"
        title += ", unequal lengths" if row.get("unequal") else ""
        points = {Panel(title): (row["seqlen"], row["tflops"])}
        if "gb_s" in row:
            by_length, by_batch = Panel(f"{title}, batch {row['batch']}"), Panel(f"{title}, {row['seqlen']} keys", by_batch=True)
            points = {by_length: (row["seqlen"], row["gb_s"]), by_batch: (row["batch"], row["gb_s"])}
        for panel, point in points.items():
            found.setdefault(panel, {}).setdefault(row["implementation"], []).append(point)
    return {panel: {name: sorted(points) for name, points in lines.items()} for panel, lines in found.items()}


def save_plot(results: Mapping[str, Any], path: Path) -> None:
    """The speed over length, or batch, a panel a head dim and mask. Raises OSError, and BackendError without matplotlib."""
    found, mode = panels(results["rows"]), MODES[results["rows"][0].get("mode", "forward")]
    columns = min(2, len(found))
    rows = -(-len(found) // columns)
    drawn = figure(max(8, 5.5 * columns), 3.4 * rows + 1)
    grid = drawn.subplots(rows, columns, squeeze=False)
    names = sorted({name for lines in found.values() for name in lines}, key=lambda name: (name != OURS, name))
    colors = {name: f"C{i}" for i, name in enumerate(names)}
    for axes, (panel, lines) in zip(grid.flat, found.items(), strict=False):
        for name, points in lines.items():
            axes.plot(*zip(*points, strict=True), marker="o", color=colors[name], label=name, linewidth=2.4 if name == OURS else 1.2)
        lengths = sorted({x for points in lines.values() for x, _ in points})
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [str(x) for x in lengths])
        axes.set_ylim(bottom=0)
        axes.set_title(panel.title, fontsize=10)
        axes.set(xlabel="batch" if panel.by_batch else "sequence length", ylabel=mode.unit)
        axes.grid(alpha=0.3)
    for axes in grid.flat[len(found) :]:
        axes.set_axis_off()
    handles = {name: line for axes in grid.flat for line, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    drawn.legend([handles[n] for n in names], names, loc="outside lower center", ncols=min(4, len(names)), frameon=False)
    drawn.suptitle(f"{results['gpu']}, {mode.name}")
    drawn.savefig(path, dpi=130)
