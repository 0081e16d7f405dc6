"""States of attention merge to attention over all keys, in any order and grouping, those without keys included."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flashgen
from flashgen.errors import CallError
from flashgen.expr import reference
from flashgen.spec import Spec

SHAPE = (2, 3, 4, 8)  # B, Sq, Hq, Dv
SCALES = st.sampled_from([0.0, 1.0, 30.0, 1e30])


@st.composite
def states(draw):
    """o and lse; some rows have no keys."""
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    lse = rng.standard_normal((SHAPE[0], SHAPE[2], SHAPE[1])) * draw(SCALES)
    empty = rng.random(lse.shape) < draw(st.sampled_from([0.0, 0.3, 1.0]))
    o = np.where(empty.swapaxes(1, 2)[..., None], 0, rng.standard_normal(SHAPE))
    return o, np.where(empty, -np.inf, lse)


def alike(x, y):
    for a, b in zip(x, y, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


@given(states(), states(), states())
def test_associative_commutative_and_nothing_changes_nothing(a, b, c):
    merge = flashgen.merge_states
    alike(merge(*merge(*a, *b), *c), merge(*a, *merge(*b, *c)))
    alike(merge(*a, *b), merge(*b, *a))
    nothing = np.zeros(SHAPE), np.full((SHAPE[0], SHAPE[2], SHAPE[1]), -np.inf)
    alike(merge(*a, *nothing), a)
    alike(merge(*nothing, *nothing), nothing)


@given(st.sampled_from(["bshd", "bhsd"]), st.integers(0, 40), st.integers(0, 999))
@settings(max_examples=20)
def test_keys_in_two_parts(layout, at, seed):
    rng = np.random.default_rng(seed)
    spec = Spec(head_dim=8, dtype="float32", mask="(kv_idx + q_idx) % 7 < 5", outputs=["o", "lse"], layout=layout)
    q, k, v = (rng.standard_normal(spec.order.arranged(b=2, s=s, h=h, d=8)).astype(np.float32) for s, h in ((5, 4), (40, 2), (40, 2)))
    axis = spec.order.axis("s")
    (ka, kb), (va, vb) = np.split(k, [at], axis), np.split(v, [at], axis)
    behind = Spec(**(spec.to_json() | {"mask": f"(kv_idx + {at} + q_idx) % 7 < 5"}))
    whole = reference(spec, q, k, v)
    merged = flashgen.merge_states(*reference(spec, q, ka, va), *reference(behind, q, kb, vb), layout)
    alike(merged, whole)


def test_dtypes_stay():
    o, lse = np.ones(SHAPE, np.float16), np.zeros((SHAPE[0], SHAPE[2], SHAPE[1]), np.float32)
    found = flashgen.merge_states(o, lse, o, lse)
    assert [x.dtype for x in found] == [o.dtype, lse.dtype]
    assert (found[0] == 1).all()
    np.testing.assert_allclose(found[1], np.log(2), rtol=1e-6)


def test_what_does_not_fit_is_said():
    o, lse = np.ones(SHAPE), np.zeros((SHAPE[0], SHAPE[2], SHAPE[1]))
    with pytest.raises(CallError, match=r"lse_b has shape \(2, 3, 4\) beside o_a \(2, 3, 4, 8\): expected \(2, 4, 3\) for layout bshd"):
        flashgen.merge_states(o, lse, o, lse.swapaxes(1, 2))
    with pytest.raises(CallError, match="unknown layout 'bsdh'"):
        flashgen.merge_states(o, lse, o, lse, "bsdh")
    with pytest.raises(CallError, match="o_b is a list: merge_states takes NumPy and CuPy arrays"):
        flashgen.merge_states(o, lse, [1], lse)
    with pytest.raises(CallError, match="o_a has 3 axes"):
        flashgen.merge_states(o[0], lse, o, lse)
