"""Packed sequences beside dense batches of the same run, causal, bfloat16, 16 heads, head dim 128: equal lengths, and one long among short.

    python benchmarks/packed.py            # to the terminal, and to benchmarks/results/packed_<card>.json
    python benchmarks/packed.py --quick    # fewer repetitions, nothing written

`relative`: equal lengths beside the dense batch; mixed ones beside the longest alone plus the others in a dense batch of their longest.
Needs a GPU.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import flashgen
from flashgen.bench import DeviceClock
from flashgen.bench.cases import rounded
from flashgen.bench.results import card_name, environment
from flashgen.bench.timing import measure
from flashgen.runtime import arrays
from flashgen.spec import Spec

RESULTS = Path(__file__).parent / "results"
HEADS, HEAD_DIM = 16, 128
CASES = {
    "4 x 4096": [4096] * 4,
    "16 x 1024": [1024] * 16,
    "64 x 256": [256] * 64,
    "16384, 63 of 100 to 500": [16384, *np.random.default_rng(0).integers(100, 501, 63).tolist()],
}


def spec(layout: str = "bshd") -> Spec:
    """The spec of a layout."""
    return Spec(head_dim=HEAD_DIM, dtype="bfloat16", mask="causal", layout=layout)


def draw(*shape: int) -> Any:
    """Normal numbers in bfloat16."""
    return rounded(arrays.cupy().random.standard_normal(shape), "bfloat16")


def packed(attention: Any, lengths: list[int]) -> Callable[[], Any]:
    """A call on packed sequences of these lengths, q, k and v apart."""
    q, k, v = (draw(sum(lengths), HEADS, HEAD_DIM) for _ in range(3))
    cu_seqlens = arrays.cupy().asarray(np.cumsum([0, *lengths], dtype=np.int32))
    return lambda: attention(q, k, v, cu_seqlens_q=cu_seqlens, cu_seqlens_k=cu_seqlens)


def dense(attention: Any, batch: int, length: int) -> Callable[[], Any]:
    """A call on sequences that are all as long."""
    q, k, v = (draw(batch, length, HEADS, HEAD_DIM) for _ in range(3))
    return lambda: attention(q, k, v)


def row(name: str, lengths: list[int], plain: Any, of_packed: Any, clock: DeviceClock, repetitions: int) -> dict[str, Any]:
    """The times of one case, in milliseconds."""
    longest, *others = sorted(lengths, reverse=True)
    parts = {"longest": (1, longest), "others": (len(others), others[0])}
    if longest == others[-1]:
        parts = {"dense": (len(lengths), longest)}
    runs = {"packed": packed(of_packed, lengths)} | {part: dense(plain, *shape) for part, shape in parts.items()}
    found = {part: round(timing.ms, 4) for part, timing in measure(runs, clock, repetitions).items()}
    flops = 2 * HEADS * HEAD_DIM * sum(n * n for n in lengths)
    ms, beside = found["packed"], {part: found[part] for part in parts}
    speed, relative = round(flops / ms * 1e-9, 1), round(ms / sum(beside.values()), 3)
    return {"lengths": name, "ms": ms, "tflops": speed, "beside": beside, "relative": relative}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    clock, measured, rows = DeviceClock(), environment(), []
    plain, of_packed = flashgen.compile(spec()), flashgen.compile(spec("thd"))
    for name, lengths in CASES.items():
        made = row(name, lengths, plain, of_packed, clock, 3 if quick else 11)
        rows.append(made)
        beside = ", ".join(f"{part} {ms:.3f}" for part, ms in made["beside"].items())
        print(f"{name:24} packed {made['ms']:.3f} ms, {made['tflops']:.0f} TFLOP/s; {beside}; relative {made['relative']:.3f}", flush=True)
    if not quick:
        path = RESULTS / f"packed_{card_name(measured)}.json"
        path.write_text(json.dumps({**measured, "suite": "packed", "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
