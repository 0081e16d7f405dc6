"""Params next to 0 and next to infinity as factors of q.k, and rows whose q.k is 0: every backend is right, or refuses."""

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flashgen
from flashgen.errors import CallError, SpecError
from flashgen.expr.holes.factors import MESSAGE
from flashgen.spec import Spec
from tests.plan.agreement import arrays, judge

SCORES = (
    "c * tanh(s / c)",
    "tanh(s / c)",
    "c * tanh(s * (w / c))",
    "tanh(s * (c * w))",
    "s * (w / c)",
    "c * sigmoid(s / c) + s",
    "-c * tanh(s / w)",
)
BACKENDS = {"interpreter": ("interpreter", "sm_90a"), "sm_90a": ("emulate", "sm_90a"), "sm_80": ("emulate", "sm_80")}
EXTREME = (1e-45, 1e-40, 1e-37, 1e-30, 1e-3, 50.0, 1e3, 1e30, 2e38, 3e38)


@functools.cache
def spec_of(score, dtype, large=False):
    """`large`: params have defaults for which tanh in 16 bits is one instruction."""
    params = {name: 1e9 if large else 50.0 for name in "cw" if name in score}
    return Spec(head_dim=16, dtype=dtype, score=score, params=params, outputs=["o", "lse"])


@functools.cache
def compiled(way, *said, **how):
    """A spec's call on a backend."""
    backend, arch = BACKENDS[way]
    return flashgen.compile(spec_of(*said, **how), arch, backend)


@pytest.mark.parametrize("way", BACKENDS)
@settings(max_examples=12)
@given(st.sampled_from(SCORES), st.sampled_from(["float16", "bfloat16", "float32"]), st.booleans(), st.data())
def test_right_or_refused(way, score, dtype, large, data):
    """Some pairs of params a text: each text is compiled once."""
    attn = compiled(way, score, dtype, large=large)
    q, k, v = arrays(attn.spec, 1, 2, 1, 20, 40)
    q[:, ::3] = 0
    numbers = st.sampled_from([x for x in EXTREME if large or x <= 1e3])
    for c, w in data.draw(st.lists(st.tuples(numbers, numbers), min_size=3, max_size=5, unique=True)):
        params = {name: value for name, value in {"c": c, "w": w}.items() if name in score}
        try:
            found = dict(zip(attn.spec.outputs, attn(q, k, v, **params), strict=True))
        except CallError as error:
            if MESSAGE not in str(error) and "too far off" not in str(error):
                raise
        else:
            judge(attn.spec, found, q, k, v, **params)


def test_what_is_refused_names_it():
    attn = compiled("interpreter", "c * tanh(s / c)", "float16")
    q, k, v = arrays(attn.spec, 1, 2, 1, 20, 40)
    with pytest.raises(CallError, match=r"c = 1e-40 breaks 0 < abs\(0.25 / c\) <= 3.4028235e\+38"):
        attn(q, k, v, c=1e-40)
    with pytest.raises(CallError, match=r"c = 3e\+38 breaks 0 < abs\(c \* 1.442695\) <= 3.4028235e\+38"):
        attn(q, k, v, c=3e38)


def test_a_param_far_from_its_default_is_refused_where_tanh_would_lose_the_score():
    for backend, c, way in (("sm_80", 1e6, "tanh by an exponential"), ("sm_90a", 1e30, None)):
        attn = compiled(backend, "c * tanh(s / c)", "float16")
        q, k, v = arrays(attn.spec, 1, 2, 1, 20, 40)
        if way:
            with pytest.raises(CallError, match=f"with c = 1000000 the score's {way} is too far off"):
                attn(q, k, v, c=c)
        else:
            judge(attn.spec, dict(zip(attn.spec.outputs, attn(q, k, v, c=c), strict=True)), q, k, v, c=c)


@pytest.mark.parametrize("way", BACKENDS)
def test_params_with_large_defaults_are_right_next_to_small_ones(way):
    attn = compiled(way, "c * tanh(s * (w / c))", "float16", large=True)
    q, k, v = arrays(attn.spec, 1, 2, 1, 20, 40)
    judge(attn.spec, dict(zip(attn.spec.outputs, attn(q, k, v, c=1e30, w=50.0), strict=True)), q, k, v, c=1e30, w=50.0)


@pytest.mark.parametrize("score", ["tanh(s / 1e-40)", "s * 1e30 * 1e30", "s * 1e-30 * 1e-30"])
def test_constants_are_refused_in_a_spec(score):
    with pytest.raises(SpecError, match=MESSAGE):
        flashgen.compile({"head_dim": 16, "dtype": "float16", "score": score}, "sm_90a", "emulate")


def test_a_param_that_is_0_is_no_fault():
    spec = Spec(head_dim=16, dtype="float32", score="s * c * w", params={"c": 2.0, "w": -1.0}, outputs=["o", "lse"])
    q, k, v = arrays(spec, 1, 2, 1, 20, 40)
    o, lse = flashgen.compile(spec, backend="interpreter")(q, k, v, w=0.0)
    assert np.allclose(o, v.mean(1, keepdims=True), atol=1e-6)
    assert np.allclose(lse, np.log(40))
