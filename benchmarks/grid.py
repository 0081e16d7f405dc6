"""The FlashAttention-3 paper's grid: flashgen and every peer that is installed, written to benchmarks/results and into the README.

    python benchmarks/grid.py

16k tokens in all, hidden size 2048, bfloat16; needs a GPU, and the peers that shall be in it. The same as
`flashgen bench --out benchmarks/results` and `python benchmarks/table.py`.
"""

from pathlib import Path

import table

from flashgen.bench import grid
from flashgen.cli import bench

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    found, results = bench.bench("grid", grid(), bench.chosen([]), RESULTS)
    bench.report(found, results)
    table.update(found)


if __name__ == "__main__":
    main()
