"""Times `output`, `norm` and `rotary`, and the same by PyTorch around plain attention of the same run.

Causal, bfloat16, B 2, S 8192, hidden size 2048.

    python benchmarks/fused.py                            # a table to the terminal

`relative`: to plain attention. Needs a GPU and PyTorch.
"""

from collections.abc import Callable
from typing import Any

import torch

import flashgen
from flashgen.bench import DeviceClock
from flashgen.bench.results import environment
from flashgen.bench.timing import measure

BATCH, LENGTH, HIDDEN, REPETITIONS = 2, 8192, 2048, 11
SCALES = {"scales": {"shape": ["hq"], "dtype": "float32"}}


ROTARY: dict[str, Any] = {"kind": "halves", "base": 10000.0}


def draw(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Normal numbers on the GPU."""
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
    norm = {"eps": 1e-6, "query": "wq", "key": "wk"}
    turned = flashgen.compile({**keys, "rotary": ROTARY})
    learned = {name: {"shape": [d], "dtype": "bfloat16"} for name in ("wq", "wk")}
    normal = flashgen.compile({**keys, "rotary": ROTARY, "norm": norm, "tensors": learned})
    w, (cos, sin) = draw(d), angles(d)
    return {
        "plain": lambda: plain(q, k, v),
        "a scale a head": lambda: scaled(q, k, v, scales=scales),
        "a scale a head, by PyTorch": lambda: plain(q, k, v) * scales.bfloat16()[:, None],
        "a gate a number": lambda: gated(q, k, v, gate=gate),
        "a gate a number, by PyTorch": lambda: plain(q, k, v) * torch.sigmoid(gate),
        "rotary": lambda: turned(q, k, v),
        "rotary, by PyTorch": lambda: plain(turn(q, cos, sin), turn(k, cos, sin), v),
        "norm and rotary": lambda: normal(q, k, v, wq=w, wk=w),
        "norm and rotary, by PyTorch": lambda: plain(*(turn(torch.nn.functional.rms_norm(x, (d,), w, 1e-6), cos, sin) for x in (q, k)), v),
    }


def angles(d: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of all positions, as libraries keep them: [S, 1, D]."""
    frequencies = ROTARY["base"] ** (-torch.arange(0, d, 2, device="cuda") / d)
    x = torch.arange(LENGTH, device="cuda")[:, None, None] * torch.cat([frequencies, frequencies])
    return x.cos().bfloat16(), x.sin().bfloat16()


def turn(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Queries or keys after the rotary embedding, as libraries write it."""
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat([-right, left], -1) * sin


def main() -> None:
    print(environment())
    for d in (64, 128):
        found = measure(contenders(d), DeviceClock(), REPETITIONS)
        for name, timing in found.items():
            print(f"head dim {d:3}  {name:28} {timing.ms:7.3f} ms  relative {timing.ms / found['plain'].ms:.3f}")


if __name__ == "__main__":
    main()
