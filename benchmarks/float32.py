"""float32, in both precisions, beside PyTorch's efficient backend and standard attention: the grid, written to benchmarks/results.

    python benchmarks/float32.py

16k tokens in all, hidden size 2048. Needs PyTorch and a GPU. Its errors: `benchmarks/accuracy.py`.
"""

from pathlib import Path

from flashgen.bench import grid
from flashgen.bench.cases import Case
from flashgen.bench.peers import OURS, Implementation, Prepared, Tensors, prepare_flashgen
from flashgen.cli import bench
from flashgen.spec import Spec

RESULTS = Path(__file__).parent / "results"
HEAD_DIMS, LENGTHS = (64, 128), (512, 4096, 16384)
TF32_ERROR = 2e-3  # relative, of o: four times what rounding to 11 bits costs


def prepare_tf32(case: Case, tensors: Tensors) -> Prepared:
    """Ours with one product of 11-bit operands."""
    rounded = Spec(**(case.spec.to_json() | {"precision": "tf32"}))
    return prepare_flashgen(Case(rounded, case.seqlen, case.batch, case.heads), tensors)


def main() -> None:
    ours, *peers = bench.chosen(["efficient", "standard"])
    rounded = Implementation(f"{OURS} tf32", "flashgen", prepare_tf32, ours.adopt, TF32_ERROR)
    found, results = bench.bench("float32", [(grid(HEAD_DIMS, LENGTHS, dtypes=("float32",)), [ours, rounded, *peers])], RESULTS)
    bench.report(found, results)


if __name__ == "__main__":
    main()
