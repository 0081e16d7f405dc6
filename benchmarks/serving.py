"""One query a sequence against batch and length, and packed sequences, with pictures: what `flashgen bench` has as modes decode and packed.

    python benchmarks/serving.py            # both, to benchmarks/results/serving_<mode>_<card>.json and .png
    python benchmarks/serving.py decode     # one of them

All peers that are installed. Needs a GPU, and matplotlib for the pictures.
"""

import argparse
from pathlib import Path

from flashgen.cli import bench

RESULTS = Path(__file__).parent / "results"
MODES = ("decode", "packed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modes", nargs="*", metavar="MODE", default=list(MODES), help=" or ".join(MODES))
    for mode in parser.parse_args().modes:
        _, wanted = bench.cases([], [], mode)
        found, results = bench.bench(f"serving_{mode}", [(wanted, bench.chosen([], mode))], RESULTS)
        bench.report(found, results)


if __name__ == "__main__":
    main()
