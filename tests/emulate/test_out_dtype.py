"""o of another dtype than q, k and v: as emitted, under the race checker, no less exact than its own rounding and that of the weights."""

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashgen.emulate import emulate
from flashgen.expr.meaning.reference import reference
from flashgen.plan import plan
from flashgen.render import render
from flashgen.spec import Spec
from tests.emulate.test_forward import call

SPECS: list[tuple[str, dict[str, Any]]] = [
    ("sm_90a", {"head_dim": 64, "mask": "causal", "dtype": "bfloat16", "out_dtype": "float32"}),
    ("sm_90a", {"head_dim": {"qk": 320, "v": 320}, "mask": "full", "dtype": "float16", "out_dtype": "float32", "layout": "bhsd"}),
    ("sm_90a", {"head_dim": 72, "mask": "window(40, 0)", "dtype": "float16", "out_dtype": "bfloat16", "softmax": "off_by_one"}),
    ("sm_90a", {"head_dim": {"qk": 64, "v": 40}, "mask": "causal", "dtype": "float32", "out_dtype": "float16"}),
    ("sm_86", {"head_dim": {"qk": 64, "v": 72}, "mask": "causal", "dtype": "bfloat16", "out_dtype": "float32"}),
    ("sm_86", {"head_dim": 64, "mask": "causal", "dtype": "float32", "out_dtype": "bfloat16", "layout": "bhsd"}),
    ("sm_86", {"head_dim": 32, "mask": "causal", "dtype": "float16", "out_dtype": "bfloat16", "schedule": "two_pass"}),
    ("sm_86", {"head_dim": 32, "mask": "causal", "dtype": "float16", "out_dtype": "float32", "schedule": "standard"}),
]


@functools.cache
def planned(index, copy_bytes):
    arch, spec = SPECS[index]
    chosen = plan(Spec(**{"outputs": ["o", "lse"], **spec}), arch, copy_bytes)
    return chosen, render(chosen)


@pytest.mark.parametrize("index", range(len(SPECS)))
@given(data=st.data())
@settings(max_examples=max(1, settings().max_examples // 50))
def test_emitted(index, data):
    arch, spec = SPECS[index]
    strided = arch == "sm_86" and "schedule" not in spec  # whose ends are of their own
    chosen, source = planned(index, data.draw(st.sampled_from([0, 4] if strided else [0]), "copy_bytes"))
    (q, k, v), values = call(data, chosen.spec)
    o = emulate(chosen, source, q, k, v, values, seed=data.draw(st.integers(0, 20), "seed"))["o"]
    want = reference(chosen.spec, q, k, v, **values)[0]
    assert o.dtype == chosen.spec.out_element.numpy
    rounding = max(chosen.spec.element.rounding, chosen.spec.out_element.rounding)
    assert np.linalg.norm(o.astype(np.float64) - want) <= 4 * rounding * np.linalg.norm(want) + 1e-30


def test_float32_is_not_rounded():
    chosen, source = planned(0, 0)
    q, k, v = (np.random.default_rng(0).standard_normal((1, 70, 1, 64)).astype(chosen.dtype.numpy) for _ in range(3))
    o = emulate(chosen, source, q, k, v)["o"]
    assert (o != o.astype(chosen.dtype.numpy).astype(np.float32)).mean() > 0.9
