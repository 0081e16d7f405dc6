"""What `output` costs: fused, and by PyTorch behind plain attention of the same run. Causal, bfloat16, B 2, S 8192, hidden size 2048.

    python benchmarks/fused.py                            # a table to the terminal

`relative`: to plain attention. Needs a GPU and PyTorch.
"""

from collections.abc import Callable
from typing import Any

import torch

import flashgen
from flashgen.bench import DeviceClock
from flashgen.bench.timing import measure

BATCH, LENGTH, HIDDEN, REPETITIONS = 2, 8192, 2048, 11
SCALES = {"scales": {"shape": ["hq"], "dtype": "float32"}}


def draw(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=dtype)


def contenders(d: int) -> dict[str, Callable[[], Any]]:
    """Calls by name, each of the same arrays."""
    heads = HIDDEN // d
    q, k, v, gate = (draw(BATCH, LENGTH, heads, d) for _ in range(4))
    scales = draw(heads, dtype=torch.float32)
    keys: dict[str, Any] = {"head_dim": d, "dtype": "bfloat16", "mask": "causal"}
    gates = {"gate": {"shape": ["b", "q_len", "hq", d], "dtype": "bfloat16"}}
    plain = flashgen.compile(keys)
    gated = flashgen.compile({**keys, "output": "o * sigmoid(gate[b, q_idx, h, v_idx])", "tensors": gates})
    scaled = flashgen.compile({**keys, "output": "o * scales[h]", "tensors": SCALES})
    return {
        "plain": lambda: plain(q, k, v),
        "a scale a head": lambda: scaled(q, k, v, scales=scales),
        "a scale a head, by PyTorch": lambda: plain(q, k, v) * scales.bfloat16()[:, None],
        "a gate a number": lambda: gated(q, k, v, gate=gate),
        "a gate a number, by PyTorch": lambda: plain(q, k, v) * torch.sigmoid(gate),
    }


def main() -> None:
    for d in (64, 128):
        found = measure(contenders(d), DeviceClock(), REPETITIONS)
        for name, timing in found.items():
            print(f"head dim {d:3}  {name:28} {timing.ms:7.3f} ms  relative {timing.ms / found['plain'].ms:.3f}")


if __name__ == "__main__":
    main()
