"""Puts the results of `benchmarks/grid.py` into the README and docs/performance.md, between two markers.

python benchmarks/table.py benchmarks/results/NVIDIA_H100_80GB_HBM3.json
"""

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", ROOT / "docs" / "performance.md")
BEGIN, END = "<!-- speed -->", "<!-- /speed -->"
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
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    others = ", ".join(sorted(set.intersection(*map(set, cells.values())) - {OURS}))
    lines += ["", f"{results['gpu']}, driver {results['driver']}, beside {others}; {versions}, commit {results['commit']}."]
    return "\n".join(lines)


def _cell(speed: dict[str, float]) -> str:
    best = max(x for name, x in speed.items() if name != OURS)
    return f"{speed[OURS]:.0f} ({speed[OURS] / best:.2f})"


def update(results: dict[str, Any]) -> None:
    """Writes the pages anew."""
    for page in PAGES:
        before, rest = page.read_text(encoding="utf-8").split(BEGIN)
        _, after = rest.split(END)
        page.write_text(f"{before}{BEGIN}\n{table(results)}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    update(json.loads(Path(sys.argv[1]).read_text()))
