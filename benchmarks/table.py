"""Puts results of `grid.py` into the README and docs/performance.md; those of other
benchmarks into the latter.

python benchmarks/table.py benchmarks/results/NVIDIA_H100_80GB_HBM3.json
"""

import json
import sys
from pathlib import Path
from typing import Any

from flashgen.ladder.rungs import RUNGS

ROOT = Path(__file__).parent.parent
NAMES = ("backward", "decode", "packed", "shapes", "masks", "lists", "variants", "float32", "ladder")
README, PERFORMANCE = ROOT / "README.md", ROOT / "docs" / "performance.md"
PAGES = {"speed": (README, PERFORMANCE), **dict.fromkeys(NAMES, (PERFORMANCE,))}
OURS = "flashgen"
# The columns of the table of variants: the name of a row's spec, and the title.
VARIANTS = {
    "causal": "causal",
    "softcap": "softcap",
    "alibi": "ALiBi",
    "window": "`window(1023, 0)`",
    "chunk": "`chunk(1024)`",
    "document": "documents of 1,111 tokens",
}
LENGTH = 4096  # queries and keys of the table of the ladder


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
    """Markdown: a row a shape; flashgen's rate, in brackets relative to the fastest peer, that of plain loads, replays, in brackets the
    fastest peer's."""
    columns = (
        "sequences, queries, keys, heads, head dim",
        "",
        "`split: invariant`",
        "`split: auto`",
        "plain loads",
        "`auto`, replayed, us",
    )
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
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
        us = r.get("replayed_us", {})
        fastest = min((us[name] for name in others if name in us), default=None)
        replayed = (f"{us[f'{OURS} auto']:.1f}" if us else "") + (f" ({fastest:.1f})" if fastest else "")
        lines.append(f"| {shape} | {r['unit']} | {' | '.join(cells)} | {loads} | {replayed} |")
    return "\n".join([*lines, "", _measured_on(results, peers)])


def packed(results: dict[str, Any]) -> str:
    """Markdown: a row a case of `packed.py`; milliseconds."""
    lines = ["| lengths | packed, ms | TFLOP/s | beside, ms | times |", "|---" * 5 + "|"]
    for r in results["rows"]:
        beside = " + ".join(f"{ms:.3f} ({part})" for part, ms in r["beside"].items())
        lines.append(f"| {r['lengths']} | {r['ms']:.3f} | {r['tflops']:.0f} | {beside} | {r['relative']:.2f} |")
    return "\n".join([*lines, "", _measured_on(results, set())])


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
    columns = ("dense", "ms", "making", "attention", "times", "unlisted", "flex", "flex mask")
    titles = "mask | head dim | tiles | dense | a call | making | attention | times | by ranges | FlexAttention | its mask"
    lines = [f"| {titles} |", "|---" * 11 + "|"]
    for r in results["rows"]:
        cells = [f"{r[name]:.3f}" if name in r else "" for name in columns]
        lines.append(f"| {r['mask']} | {r['head_dim']} | {r['ideal']:.0%}, {r['by']} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", _measured_on(results, {"FlexAttention"} if any("flex" in r for r in results["rows"]) else set())])


def lists(results: dict[str, Any]) -> str:
    """Markdown: a row a case of `lists.py`; milliseconds."""
    lines = ["| case | dense | listed | making | attention | times | FlexAttention |", "|---" * 7 + "|"]
    for r in results["rows"]:
        cells = [
            f"{r[name]:.{digits}f}" if name in r else ""
            for name, digits in zip(("dense", "listed", "making", "attention", "relative", "flex"), (4, 4, 4, 4, 2, 4), strict=True)
        ]
        lines.append(f"| {r['case']} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", _measured_on(results, {"FlexAttention"} if any("flex" in r for r in results["rows"]) else set())])


def variants(results: dict[str, Any]) -> str:
    """Markdown: a column a variant; milliseconds, and how many times those of causal attention."""
    taken = {(r["head_dim"], r["implementation"], r["spec"]): r["ms"] for r in results["rows"]}
    lines = ["| head dim | | " + " | ".join(VARIANTS.values()) + " |", "|---" * (len(VARIANTS) + 2) + "|"]
    for head_dim in sorted({key[0] for key in taken}):
        ours = [taken[head_dim, OURS, name] for name in VARIANTS]
        lines.append(f"| {head_dim} | flashgen, times causal | " + " | ".join(f"{ms / ours[0]:.2f}" for ms in ours) + " |")
        lines.append("| | flashgen, ms | " + " | ".join(f"{ms:.2f}" for ms in ours) + " |")
        theirs = [taken.get((head_dim, "flex", name)) for name in VARIANTS]
        lines.append("| | FlexAttention, ms | " + " | ".join("" if ms is None else f"{ms:.2f}" for ms in theirs) + " |")
    return "\n".join([*lines, "", _measured_on(results, {"FlexAttention"})])


def of_float32(results: dict[str, Any]) -> str:
    """Markdown: TFLOP/s of `precision: ieee`, in brackets relative to PyTorch's efficient backend, then those of `tf32`."""
    speeds: dict[tuple[int, bool, int], dict[str, float]] = {}
    for r in results["rows"]:
        speeds.setdefault((r["head_dim"], r["causal"], r["seqlen"]), {})[r["implementation"]] = r["tflops"]
    lengths = sorted({key[2] for key in speeds})
    lines = ["| head dim | mask | " + " | ".join(map(str, lengths)) + " |", "|---" * (len(lengths) + 2) + "|"]
    for head_dim, causal in sorted({key[:2] for key in speeds}):
        found = [speeds[head_dim, causal, length] for length in lengths]
        cells = [f"{x[OURS]:.0f} ({x[OURS] / x['efficient']:.1f}), {x[f'{OURS} tf32']:.0f}" for x in found]
        lines.append(f"| {head_dim} | {'causal' if causal else 'full'} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", _measured_on(results, {"PyTorch's efficient backend"})])


def ladder(results: dict[str, Any]) -> str:
    """Markdown: a row a rung."""
    titles = {rung.name: rung.title for rung in RUNGS}
    lines = ["| rung | ms | extra memory, MB | bytes read and written, MB |", "|---" * 4 + "|"]
    for r in results["rows"]:
        if r["length"] == LENGTH:
            moved = f"{(r['counted']['read'] + r['counted']['written']) / 1e6:.0f}" if r["counted"] else ""
            lines.append(f"| {titles[r['rung']]} | {r['milliseconds']:.3f} | {r['memory'] / 1e6:.0f} | {moved} |")
    return "\n".join([*lines, "", _measured_on(results, set())])


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
    """The name of a file of results in markers: its suite where that has a table of its own, else backward or speed."""
    first = results["rows"][0]
    suite = results.get("suite", "ladder" if "rung" in first else first.get("suite"))
    return suite if suite in PAGES else "backward" if first["mode"] == "backward" else "speed"


def markers(name: str) -> tuple[str, str]:
    """The markers before and behind a table."""
    return f"<!-- {name} -->", f"<!-- /{name} -->"


def text(results: dict[str, Any]) -> str:
    """The table of a file of results."""
    tables = {"decode": decoding, "packed": packed, "shapes": shapes, "masks": masks, "lists": lists}
    tables |= {"variants": variants, "float32": of_float32, "ladder": ladder}
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
