"""A cache that grows by a key a call: its launches are patched, and what lies behind its keys is not read."""

from typing import Any

import numpy as np
import pytest

import flashgen
from flashgen.spec import Spec
from tests.gpu.judge import down, judge, up
from tests.plan.agreement import arrays

SPECS = {
    "causal": Spec(head_dim=64, dtype="bfloat16", mask="causal", outputs=["o", "lse"]),
    "float32": Spec(head_dim=64, dtype="float32", mask="causal", outputs=["o", "lse"]),
    "heads first": Spec(head_dim=128, dtype="float16", layout="bhsd", outputs=["o", "lse"]),
    "bias": Spec(
        head_dim=64,
        dtype="bfloat16",
        score="s + bias[h, kv_idx]",
        tensors={"bias": {"shape": ["hq", "kv_len"], "dtype": "float32"}},
        outputs=["o", "lse"],
    ),
}


@pytest.mark.parametrize("whole", [False, True], ids=["slices", "copies"])
@pytest.mark.parametrize("q_len", [1, 3])
@pytest.mark.parametrize("name", SPECS)
def test_a_cache_that_grows(name: str, q_len: int, whole: bool) -> None:
    spec, room, first = SPECS[name], 640, 500  # across the class of 512 keys
    axis = 1 if spec.layout == "bshd" else 2
    q, k, v = arrays(spec, 2, 4, 2, q_len, room)
    bias = np.random.default_rng(0).standard_normal((4, room)).astype(np.float32)
    attn = flashgen.compile(spec)
    for n in range(first, first + 30):
        known = tuple(x.take(range(n), axis) for x in (k, v))
        keys, values = up(*known)
        if not whole:
            keys, values = (_roomy(x, spec, axis, room) for x in known)
        biases = {"bias": bias[:, :n]} if spec.tensors else {}
        given = dict(zip(biases, up(*biases.values()), strict=True))
        o, lse = attn(*up(q), keys, values, **given)
        judge(spec, down((o, lse)), q, *known, **biases)


def _roomy(x: Any, spec: Spec, axis: int, room: int) -> Any:
    """The array as the first rows of memory that holds NaN behind them."""
    shape = [room if i == axis else n for i, n in enumerate(x.shape)]
    memory = np.full(shape, np.nan, np.float32).astype(spec.element.numpy)
    memory[tuple(slice(n) for n in x.shape)] = x
    (there,) = up(memory)
    return there[tuple(slice(n) for n in x.shape)]
