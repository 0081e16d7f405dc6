"""Puts the newest results of `benchmarks/forward.py` into the README, between its two markers.

python benchmarks/table.py benchmarks/results/NVIDIA_H100_80GB_HBM3.json
"""

import json
import sys
from pathlib import Path

BEGIN, END = "<!-- speed -->", "<!-- /speed -->"


def table(results: dict) -> str:
    """Markdown: TFLOP/s of flashgen, and in brackets its speed relative to the fastest other, a row for each head dim and mask."""
    rows = [r for r in results["rows"] if r["dtype"] == "bfloat16"]
    lengths = sorted({r["seqlen"] for r in rows})
    speed = {(r["head_dim"], r["causal"], r["seqlen"], r["implementation"]): r["tflops"] for r in rows}
    lines = ["| head dim | mask | " + " | ".join(map(str, lengths)) + " |", "|---" * (len(lengths) + 2) + "|"]
    for head_dim, causal in sorted({key[:2] for key in speed}):
        cells = []
        for length in lengths:
            ours = speed[head_dim, causal, length, "flashgen"]
            best = max(speed[head_dim, causal, length, peer] for peer in ("cudnn", "flash"))
            cells.append(f"{ours:.0f} ({ours / best:.2f})")
        lines.append(f"| {head_dim} | {'causal' if causal else 'full'} | " + " | ".join(cells) + " |")
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    lines += ["", f"{results['gpu']}, driver {results['driver']}, {versions}, commit {results['commit']}."]
    return "\n".join(lines)


def main() -> None:
    readme = Path(__file__).parent.parent / "README.md"
    text = readme.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    readme.write_text(f"{before}{BEGIN}\n{table(json.loads(Path(sys.argv[1]).read_text()))}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
