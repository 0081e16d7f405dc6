"""Puts results of `grid.py` into the README and docs/performance.md; those of other
benchmarks into the latter.

python benchmarks/table.py benchmarks/results/NVIDIA_H100_80GB_HBM3.json
"""

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
README, PERFORMANCE = ROOT / "README.md", ROOT / "docs" / "performance.md"
PAGES = {"speed": (README, PERFORMANCE), **dict.fromkeys(("backward", "decode", "shapes", "masks", "lists"), (PERFORMANCE,))}
OURS = "flashgen"


def table(results: dict[str, Any]) -> str:
    """Markdown: TFLOP/s of flashgen, in brackets its speed relative to the fastest other; a row for each head dim and mask."""
    rows = [r for r in results["rows"] if r["dtype"] == "bfloat16" and not r["implementation"].startswith(f"{OURS} ")]
    lengths = sorted({r["seqlen"] for r in rows})
    cells: dict[tuple[int, bool, int], dict[str, float]] = {}
    for r in rows:
        cells.setdefault((r["head_dim"], r["causal"], r["seqlen"]), {})[r["implementation"]] = r["tflops"]
    lines = ["| head dim | mask | " + " | ".join(map(str, lengths)) + " |", "|---" * (len(lengths) + 2) + "|"]
    for head_dim, causal in sorted({key[:2] for key in cells}):
        texts = [_cell(cells[head_dim, causal, length]) for length in lengths]
        lines.append(f"| {head_dim} | {'causal' if causal else 'full'} | " + " | ".join(texts) + " |")
    others = set.intersection(*map(set, cells.values())) - {OURS}
    return "\n".join([*lines, "", _measured_on(results, others)])


def decoding(results: dict[str, Any]) -> str:
    """Markdown: a row a shape; flashgen's rate, in brackets relative to the fastest peer, that of plain loads apart."""
    lines = ["| sequences, queries, keys, heads, head dim | | `split: invariant` | `split: auto` | plain loads |", "|---" * 5 + "|"]
    peers: set[str] = set()
    for r in results["rows"]:
        rates = r["rates"]
        others = {name: rate for name, rate in rates.items() if not name.startswith(OURS) and name != "loads"}
        peers |= others.keys()
        cells = [
            f"{rates[name]:.0f}" + (f" ({rates[name] / max(others.values()):.2f})" if others else "") for name in (OURS, f"{OURS} auto")
        ]
        shape = f"{r['batch']}, {r['q_len']}, {r['kv_len']}, {r['heads']}/{r['kv_heads']}, {r['head_dim']}"
        loads = "" if r["flops"] or "loads" not in rates else f"{rates['loads']:.0f}"
        lines.append(f"| {shape} | {r['unit']} | {' | '.join(cells)} | {loads} |")
    return "\n".join([*lines, "", _measured_on(results, peers)])


def shapes(results: dict[str, Any]) -> str:
    """Markdown: a row a model and mask, its lengths one behind the other; flashgen's speed, in brackets relative to the fastest peer."""
    lines = ["| model | sequences, heads, head dim | mask | queries: TFLOP/s |", "|---" * 4 + "|"]
    cells: dict[str, list[str]] = {}
    peers: set[str] = set()
    for r in results["rows"]:
        heads, dims = ("/".join(map(str, dict.fromkeys(r[name]))) for name in ("heads", "head_dim"))
        keys = f", {r['kv_len']} keys" if r["kv_len"] != r["q_len"] else ""
        row = f"| {r['model']} | {r['batch']}, {heads}, {dims} | `{r['mask']}`{keys} |"
        ratio = relative(r["tflops"])
        cells.setdefault(row, []).append(f"{r['q_len']}: {r['tflops'][OURS]:.0f}" + (f" ({ratio})" if ratio else ""))
        peers |= r["tflops"].keys() - {OURS}
    return "\n".join([*lines, *(f"{row} {', '.join(found)} |" for row, found in cells.items()), "", _measured_on(results, peers)])


def masks(results: dict[str, Any]) -> str:
    """Markdown: a row a mask and head dim; milliseconds, and how many times those of dense attention over the share of its tiles."""
    columns = ("dense", "ms", "making", "times", "unlisted", "flex", "flex mask")
    lines = ["| mask | head dim | tiles | dense | a call | making | times | by ranges | FlexAttention | its mask |", "|---" * 10 + "|"]
    for r in results["rows"]:
        cells = [f"{r[name]:.3f}" if name in r else "" for name in columns]
        lines.append(f"| {r['mask']} | {r['head_dim']} | {r['ideal']:.0%}, {r['by']} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", _measured_on(results, {"FlexAttention"} if any("flex" in r for r in results["rows"]) else set())])


def lists(results: dict[str, Any]) -> str:
    """Markdown: a row a case of `lists.py`; milliseconds."""
    lines = ["| case | dense | listed | making | times | FlexAttention |", "|---" * 6 + "|"]
    for r in results["rows"]:
        cells = [
            f"{r[name]:.{digits}f}" if name in r else ""
            for name, digits in zip(("dense", "listed", "making", "relative", "flex"), (4, 4, 4, 2, 4), strict=True)
        ]
        lines.append(f"| {r['case']} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", _measured_on(results, {"FlexAttention"} if any("flex" in r for r in results["rows"]) else set())])


def relative(speed: dict[str, float]) -> str:
    """flashgen's speed relative to the fastest other; nothing where there is none."""
    others = [x for name, x in speed.items() if name != OURS]
    return f"{speed[OURS] / max(others):.2f}" if others else ""


def _measured_on(results: dict[str, Any], others: set[str]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    beside = f", beside {', '.join(sorted(others))}" if others else ""
    return f"{results['gpu']}, driver {results['driver']}{beside}; {versions}, commit {results['commit']}."


def _cell(speed: dict[str, float]) -> str:
    return f"{speed[OURS]:.0f} ({relative(speed)})"


def kind(results: dict[str, Any]) -> str:
    """The name of a file of results in markers: its suite where that is no grid, else backward or speed."""
    return str(results["suite"]) if "suite" in results else "backward" if results["rows"][0]["mode"] == "backward" else "speed"


def markers(name: str) -> tuple[str, str]:
    """The markers before and behind a table."""
    return f"<!-- {name} -->", f"<!-- /{name} -->"


def text(results: dict[str, Any]) -> str:
    """The table of a file of results."""
    tables = {"decode": decoding, "shapes": shapes, "masks": masks, "lists": lists}
    return tables.get(kind(results), table)(results)


def update(results: dict[str, Any]) -> None:
    """Writes the pages anew."""
    begin, end = markers(kind(results))
    for page in PAGES[kind(results)]:
        before, rest = page.read_text(encoding="utf-8").split(begin)
        _, after = rest.split(end)
        page.write_text(f"{before}{begin}\n{text(results)}\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    update(json.loads(Path(sys.argv[1]).read_text()))
