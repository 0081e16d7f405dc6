"""The FlashAttention-3 paper's grid: flashgen and every peer that is installed, written to benchmarks/results and into the README.

    python benchmarks/grid.py

16k tokens in all, hidden size 2048; bfloat16, the same as `flashgen bench --out benchmarks/results`, then float16: flashgen, and standard
attention in CuPy, which has no bfloat16. Needs a GPU, and the peers that shall be in it.
"""

from pathlib import Path

import table

from flashgen.bench import grid
from flashgen.cli import bench

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    jobs = [(grid(), bench.chosen([])), (grid(dtypes=["float16"]), bench.chosen(["standard"]))]
    found, results = bench.bench("grid", jobs, RESULTS)
    bench.report(found, results)
    table.update(found)


if __name__ == "__main__":
    main()
