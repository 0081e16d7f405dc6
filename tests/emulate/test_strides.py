"""Arrays that TMA cannot address, through cp.async of every width and element by element, on the emulated kernel."""

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashgen.emulate import emulate
from flashgen.expr.meaning.reference import reference
from flashgen.plan import plan
from flashgen.render import render
from flashgen.spec import Spec

NAN = {"float16": 0x7E01, "bfloat16": 0x7FC1}
SPECS = {
    16: {"head_dim": 96, "dtype": "float16", "mask": "causal", "block": {"m": 64, "n": 48}},
    8: {"head_dim": {"qk": 72, "v": 136}, "dtype": "bfloat16", "mask": "causal", "warps": 3, "stages": 3},
    4: {"head_dim": {"qk": 16, "v": 40}, "dtype": "float16", "mask": "window(20, 5)", "warps": 1},
    2: {"head_dim": 64, "dtype": "bfloat16", "mask": "prefix(9) | window(30, 0)", "warps": 2},
}


@functools.cache
def planned(copy_bytes):
    chosen = plan(Spec(**SPECS[copy_bytes], outputs=["o", "lse"]), "sm_90a", copy_bytes)
    return chosen, render(chosen)


def laid_out(shape, copy_bytes, dtype, order, reverse):
    """An array [B, S, H, D] in NaN, its rows aligned to `copy_bytes` and no more, its axes in memory in `order`."""
    pad = copy_bytes // 2 if copy_bytes < 16 else 8
    step = 3 if copy_bytes == 2 else 1
    row = -(-shape[3] // 8) * 8 * step + pad
    outer = [shape[axis] for axis in order]
    memory = np.full(int(np.prod(outer)) * row + pad + 8, NAN[dtype], np.uint16)
    start = -(memory.ctypes.data // 2) % 8 + pad % 8
    x = memory[start : start + int(np.prod(outer)) * row].reshape(*outer, row)[..., : shape[3] * step : step]
    x = x.transpose(*np.argsort(order), 3)
    if reverse:
        x = x[:, ::-1, ::-1, :: -1 if copy_bytes == 2 else 1]
    return x.view(np.float16) if dtype == "float16" else x


def values(rng, shape, copy_bytes, spec, data):
    x = laid_out(shape, copy_bytes, spec.dtype, data.draw(st.permutations(range(3)), "order"), data.draw(st.booleans(), "reverse"))
    x.view(np.uint16)[...] = rng.standard_normal(shape).astype(spec.element.numpy).view(np.uint16)
    return x.view(spec.element.numpy)


@pytest.mark.parametrize("copy_bytes", SPECS)
@given(data=st.data())
@settings(max_examples=settings().max_examples // 10)
def test_any_strides(copy_bytes, data):
    chosen, source = planned(copy_bytes)
    spec, rng = chosen.spec, np.random.default_rng(data.draw(st.integers(0, 99), "values"))
    batch, kv_heads, group = (data.draw(st.integers(1, 2), name) for name in ("batch", "kv_heads", "group"))
    q_len, kv_len = data.draw(st.integers(1, 150), "q_len"), data.draw(st.integers(1, 200), "kv_len")
    q = values(rng, (batch, q_len, kv_heads * group, spec.head_dim.qk), copy_bytes, spec, data)
    shared = data.draw(st.booleans(), "keys shared by all heads")
    k, v = (values(rng, (batch, kv_len, 1 if shared else kv_heads, d), copy_bytes, spec, data) for d in (spec.head_dim.qk, spec.head_dim.v))
    k, v = (np.broadcast_to(x, (batch, kv_len, kv_heads, x.shape[3])) for x in (k, v))
    found = emulate(chosen, source, q, k, v, seed=data.draw(st.integers(0, 20), "seed"))
    want_o, want_lse = reference(spec, q, k, v)
    off = np.linalg.norm(found["o"].astype(np.float64) - want_o, axis=-1)
    assert (off <= 3 * spec.element.rounding * np.linalg.norm(want_o, axis=-1) + 1e-6).all()
    np.testing.assert_allclose(found["lse"], want_lse, rtol=2e-4, atol=2e-4)
