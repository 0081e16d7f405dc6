"""Floats that decide in emitted kernels and in the interpreter, each mask stated in NumPy's float32, operation by operation."""

import numpy as np
import pytest

from flashgen.expr.meaning.reference import reference
from flashgen.spec import Spec
from tests.emulate.test_integers import KERNELS, found_by
from tests.plan.agreement import arrays, error

Q, K = 70, 150
ROWS, KEYS = (np.arange(n, dtype=np.float32) for n in (Q, K))
D = KEYS - ROWS[:, None]
A, C = np.float32(0.1), np.float32(41.0)
BIAS = np.where(ROWS > 9, np.float32(np.nan), ROWS)
MASKS = {  # what is seen, and what would be with a fused multiply-add, a reciprocal, other terms, or its opposite turned
    "a * (kv_idx - q_idx) + -1.0 > 0.0": (A * D - np.float32(1) > 0, np.float64(A) * D > 1),
    "floor((kv_idx - q_idx) / c) == 1.0": (np.floor(D / C) == 1, np.floor(D * (np.float32(1) / C)) == 1),
    "a * kv_idx - a * q_idx >= 1.0": (A * KEYS - A * ROWS[:, None] >= 1, A * D >= 1),
    "~(a * kv_idx < bias[q_idx])": (~np.less(A * KEYS, BIAS[:, None]), np.greater_equal(A * KEYS, BIAS[:, None])),
}


@pytest.mark.parametrize(("mask", "arch", "dtype"), [
    *((mask, *KERNELS[i % 3]) for i, mask in enumerate(MASKS)),
    *((mask, "host", "float32") for mask in MASKS),
])  # fmt: skip
def test_masks_of_floats(mask, arch, dtype):
    given = {"head_dim": 16, "dtype": dtype, "outputs": ["o", "lse"]}
    params = {name: float(value) for name, value in {"a": A, "c": C}.items() if f"{name} " in mask.replace(")", " ")}
    tensors = {"bias": {"shape": ["q_len"], "dtype": "float32"}} if "bias" in mask else {}
    spec = Spec(**given, mask=mask, params=params, tensors=tensors)
    q, k, v = arrays(spec, 1, 2, 1, Q, K)
    seen, rewritten = MASKS[mask]
    assert (seen != rewritten).any()
    stated = Spec(**given, mask="seen[q_idx, kv_idx]", tensors={"seen": {"shape": ["q_len", "kv_len"], "dtype": "bool"}})
    o, lse = reference(stated, q, k, v, seen=seen)
    found = found_by(arch, spec, q, k, v, {"bias": BIAS} if tensors else {})
    assert error(found["o"], o) < 3e-3
    assert error(found["lse"], lse) < 1e-3
