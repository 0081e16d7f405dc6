"""Integers beyond 32 bits in emitted kernels and in the interpreter, each mask stated by Python's integers."""
# ruff: noqa: ARG005 - a definition takes sequence, query, key and param, whichever it reads

import re

import numpy as np
import pytest

from flashgen.emulate import emulate
from flashgen.expr.meaning.reference import reference
from flashgen.interpret import interpret
from flashgen.plan import plan
from flashgen.render import render
from flashgen.spec import Spec
from tests.plan.agreement import arrays, error

Q, K = 70, 150
TOP, LOW = 2**31 - 1, -(2**31)
OFF = K - Q
LENS = np.int32([TOP, LOW])
TIMES = np.sort(np.random.default_rng(0).integers(LOW, TOP, (2, K)).astype(np.int32), axis=1)
TIMES[:, :40] = LOW  # a sentinel
TIMES[:, -3:] = TOP
TENSORS = {"lens": {"shape": ["b"], "dtype": "int32"}, "times": {"shape": ["b", "kv_len"], "dtype": "int32"}}
VALUES = {"lens": LENS, "times": TIMES}
MASKS = {  # with n, the tensor that is read, and whether query i of sequence b sees key j
    "window(9, n)": (TOP, None, lambda b, i, j, n: j >= i + OFF - 9),
    "window(n, 0)": (TOP, None, lambda b, i, j, n: j <= i + OFF),
    "(kv_idx <= q_idx + n) & (kv_idx > q_idx - n)": (TOP, None, lambda b, i, j, n: True),
    "kv_idx >= q_idx - n": (LOW, None, lambda b, i, j, n: False),
    "abs(kv_idx - q_idx) > n": (LOW, None, lambda b, i, j, n: True),
    "chunk(n)": (TOP, None, lambda b, i, j, n: True),
    "kv_idx < lens[b] + 1": (0, "lens", lambda b, i, j, n: b == 0),
    "kv_idx < lens[b]": (0, "lens", lambda b, i, j, n: b == 0),
    "(times[b, kv_idx] <= times[b, q_idx]) & (times[b, kv_idx] > times[b, q_idx] - n)": (
        2**30,
        "times",
        lambda b, i, j, n: int(TIMES[b, i]) - n < int(TIMES[b, j]) <= int(TIMES[b, i]),
    ),
    "abs(times[b, kv_idx]) > n": (TOP, "times", lambda b, i, j, n: abs(int(TIMES[b, j])) > n),
    "times[b, kv_idx] * n < q_idx": (3, "times", lambda b, i, j, n: int(TIMES[b, j]) * n < i),
}


KERNELS = (("sm_90a", "float16"), ("sm_80", "float16"), ("sm_90a", "float32"))


def found_by(arch, spec, q, k, v, values):
    chosen = plan(spec, arch)
    return interpret(chosen, q, k, v, values) if arch == "host" else emulate(chosen, render(chosen), q, k, v, values)


@pytest.mark.parametrize(("mask", "arch", "dtype"), [
    *((mask, *KERNELS[i % 3]) for i, mask in enumerate(MASKS)),
    *((mask, "host", "float32") for mask in MASKS),
])  # fmt: skip
def test_masks_of_any_32_bit_numbers(mask, arch, dtype):
    n, tensor, sees = MASKS[mask]
    given = {"head_dim": 16, "dtype": dtype, "outputs": ["o", "lse"]}
    params, tensors = {"n": n} if re.search(r"\bn\b", mask) else {}, {tensor: TENSORS[tensor]} if tensor else {}
    spec = Spec(**given, mask=mask, params=dict.fromkeys(params, 1), tensors=tensors)
    q, k, v = arrays(spec, 2, 2, 1, Q, K)
    seen = np.array([[[sees(b, i, j, n) for j in range(K)] for i in range(Q)] for b in range(2)])
    stated = Spec(**given, mask="seen[b, q_idx, kv_idx]", tensors={"seen": {"shape": ["b", "q_len", "kv_len"], "dtype": "bool"}})
    o, lse = reference(stated, q, k, v, seen=seen)
    found = found_by(arch, spec, q, k, v, params | {name: VALUES[name] for name in tensors})
    assert error(found["o"], o) < 3e-3
    assert error(found["lse"], lse) < 1e-3


@pytest.mark.parametrize("arch", ["sm_90a", "sm_80", "host"])
def test_a_bias_of_squared_distances(arch):
    """Beyond 2^31 from 46,341 keys on."""
    score = "s - (q_idx - kv_idx) * (q_idx - kv_idx) / 4e8"
    spec = Spec(head_dim=16, dtype="float16", score=score, outputs=["o", "lse"])
    q, k, v = arrays(spec, 1, 1, 1, 1, 50_000)
    scores = q[0, 0, 0].astype(np.float64) @ k[0, :, 0].astype(np.float64).T / 4 - np.arange(50_000.0) ** 2 / 4e8
    weights = np.exp(scores - scores.max())
    found = found_by(arch, spec, q, k, v, {})
    assert error(found["o"][0, 0, 0], weights @ v[0, :, 0] / weights.sum()) < 1e-3
    assert abs(found["lse"].item() - scores.max() - np.log(weights.sum())) < 1e-3
