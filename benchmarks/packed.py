"""Packed sequences beside dense batches of the same run, causal, bfloat16, 16 heads, head dim 128: equal lengths, and one long among short.

    python benchmarks/packed.py                           # a table to the terminal
    python benchmarks/packed.py --quick                   # fewer repetitions

`relative`: equal lengths beside the dense batch; mixed ones beside the longest alone plus the others in a dense batch of their longest.
Needs a GPU.
"""

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np

import flashgen
from flashgen.bench import DeviceClock
from flashgen.bench.cases import rounded
from flashgen.bench.timing import measure
from flashgen.runtime import arrays
from flashgen.spec import Spec

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    repetitions = 3 if parser.parse_args().quick else 11
    clock, plain, of_packed = DeviceClock(), flashgen.compile(spec()), flashgen.compile(spec("thd"))
    for name, lengths in CASES.items():
        longest, *others = sorted(lengths, reverse=True)
        parts = {"longest": (1, longest), "others": (len(others), others[0])}
        if longest == others[-1]:
            parts = {"dense": (len(lengths), longest)}
        runs = {"packed": packed(of_packed, lengths)} | {part: dense(plain, *shape) for part, shape in parts.items()}
        found = {part: timing.ms for part, timing in measure(runs, clock, repetitions).items()}
        relative = found["packed"] / sum(found[part] for part in parts)
        flops = 2 * HEADS * HEAD_DIM * sum(n * n for n in lengths)
        speed = flops / found["packed"] * 1e-9
        beside = ", ".join(f"{part} {found[part]:.3f}" for part in parts)
        print(f"{name:24} packed {found['packed']:.3f} ms, {speed:.0f} TFLOP/s; {beside}; relative {relative:.3f}")


if __name__ == "__main__":
    main()
