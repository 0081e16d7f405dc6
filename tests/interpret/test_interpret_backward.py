"""The backward's schedule in NumPy, beside the float64 gradients: any mask, score, softmax, shape and dtype."""

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from flashgen.errors import SpecError
from flashgen.interpret import Given, interpret_backward
from flashgen.plan.backward import plan_backward
from flashgen.spec import Spec
from tests.expr.grammar import conditions
from tests.expr.grammar import declared as declared_by
from tests.plan import gradients

TABLES = {
    "x": ["hq"],
    "bias": ["b", "hq", "q_len", "kv_len"],
    "gate": ["b", "hk", "kv_len"],
    "rows": ["hq", "q_len"],
    "near": [9, "hq"],
}
SCORES = [
    "s",
    "-1.5 * s",
    "c * tanh(s / c)",
    "s + x[h] * (kv_idx - q_idx) * 0.01",
    "s * (1.0 + 0.1 * x[h]) + c",
    "s + bias[b, h, q_idx, kv_idx]",
    "s * sigmoid(gate[b, hk, kv_idx]) - rows[h, q_idx]",
    "s + near[min(max(kv_idx - q_idx + 4, 0), 8), h]",
    "near[int(abs(s)), h] * s",
    "silu(s) + exp(-abs(c)) * sin(s)",
    "x[h] - c",
]
SOFTMAXES = [None, None, "off_by_one", {"sink": "x[h] + 0.5 * c"}]


def asking(dtype="float16", **given):
    """A spec whose params and tensors all ask for their gradients, where they have one."""
    text = " ".join(map(str, given.values()))
    tensors = {name: {"shape": shape, "dtype": "float32", "grad": True} for name, shape in TABLES.items() if f"{name}[" in text}
    params = {"c": {"default": 2.5, "grad": True}} if any(part in text for part in ("c *", "+ c", "- c", "(c)", "* c")) else {}
    mask = declared_by(given.get("mask", ""))
    mask["tensors"] = {name: shape for name, shape in mask["tensors"].items() if name not in tensors}
    return Spec(
        dtype=dtype,
        backward=True,
        **{"head_dim": {"qk": 12, "v": 20}, **given},
        params={**{k: v for k, v in mask["params"].items() if k not in params}, **params},
        tensors={**mask["tensors"], **tensors},
    )


def values_of(spec, shape, broadcast=(), seed=0):
    """Tensors of a call; axes that are named in `broadcast` are 1."""
    batch, heads, kv_heads, q_len, kv_len = shape
    words = {"b": batch, "hq": heads, "hk": kv_heads, "q_len": q_len, "kv_len": kv_len}
    random, found = np.random.default_rng(seed), {}
    for t in spec.tensors:
        axes = tuple(1 if n in broadcast and t.dtype == "float32" else words.get(n, n) for n in t.shape)
        found[t.name] = (random.standard_normal(axes) * (4 if t.dtype == "int32" else 1)).astype(t.dtype)
    return found


def check(spec, shape, seed=0, **values):
    arrays = gradients.given(spec, *shape, seed=seed, dlse=True, **values)
    found = interpret_backward(plan_backward(spec, "host"), arrays, values)
    gradients.judge(spec, found, arrays, **values)
    return found


@st.composite
def cases(draw):
    given = {"score": draw(st.sampled_from(SCORES)), "mask": draw(conditions(2)), "softmax": draw(st.sampled_from(SOFTMAXES))}
    kv_heads, lengths = draw(st.integers(1, 2)), st.integers(0, 40) | st.sampled_from([0, 1, 127, 128, 129, 200])
    shape = (draw(st.integers(1, 2)), kv_heads * draw(st.integers(1, 2)), kv_heads, draw(lengths), draw(lengths))
    broadcast = draw(st.sets(st.sampled_from(["b", "hq", "hk", "q_len", "kv_len"])))
    return given, shape, draw(st.sampled_from(["bshd", "bhsd"])), draw(st.sampled_from(["float16", "bfloat16"])), broadcast


@settings(max_examples=25)
@given(cases(), st.integers(0, 99))
def test_any_spec(case, seed):
    given, shape, layout, dtype, broadcast = case
    try:
        spec = asking(dtype, layout=layout, **given)
        plan_backward(spec, "host")
    except SpecError:  # a mask that has no meaning
        reject()
    check(spec, shape, seed, **values_of(spec, shape, broadcast, seed))


@pytest.mark.parametrize("score", SCORES)
def test_every_score(score):
    """In several tiles of each side."""
    spec, shape = asking(score=score, mask="causal", softmax={"sink": "x[h]"}), (1, 4, 2, 150, 140)
    check(spec, shape, **values_of(spec, shape))


@pytest.mark.parametrize("softmax", ["none", {"sink": "x[h] + 0.5 * c"}])
def test_other_softmaxes(softmax):
    spec, shape = asking(score="sigmoid(s + x[h])", mask="window(9, 3)", softmax=softmax), (2, 2, 1, 40, 40)
    check(spec, shape, **values_of(spec, shape))


def test_the_scale_of_a_param():
    check(
        Spec(head_dim=16, dtype="bfloat16", backward=True, scale="t / sqrt(d)", params={"t": {"default": 2.0, "grad": True}}),
        (1, 2, 1, 20, 30),
    )


def test_rows_without_keys_give_zeros():
    found = check(Spec(head_dim=16, dtype="float16", mask="causal", backward=True), (1, 1, 1, 40, 20))
    assert not found["dq"][:, :20].any()


def test_what_no_query_may_see_by_its_place_never_matters():
    spec = Spec(head_dim=16, dtype="float16", mask="kv_idx < 9", backward=True)
    arrays = gradients.given(spec, 1, 2, 1, 10, 20)
    for x in (arrays.k, arrays.v):
        x[:, 9:] = np.nan
    found = interpret_backward(plan_backward(spec, "host"), arrays)
    gradients.judge(spec, found, arrays)


def test_a_low_lse_beside_tiles_that_are_not_whole():
    q, k, v = (np.full((1, 20, 1, 16), x, np.float16) for x in (8, -8, 1))
    spec = Spec(head_dim=16, dtype="float16", mask="causal", backward=True)
    arrays = gradients.completed(spec, q, k, v)
    assert (arrays.lse < -120).all()
    gradients.judge(spec, interpret_backward(plan_backward(spec, "host"), arrays), arrays)


def test_products_beyond_float16():
    random = np.random.default_rng(7)
    q, k = ((24 + 0.05 * random.standard_normal((1, n, 2, 128))).astype(np.float16) for n in (16, 64))
    spec = Spec(head_dim=128, dtype="float16", backward=True)
    arrays = gradients.completed(spec, q, k, random.standard_normal(k.shape).astype(np.float16))
    gradients.judge(spec, interpret_backward(plan_backward(spec, "host"), arrays), arrays)


def test_without_a_gradient_of_lse():
    spec = Spec(head_dim=16, dtype="float16", backward=True)
    arrays = gradients.given(spec, 1, 1, 1, 5, 6)
    assert isinstance(arrays, Given)
    assert arrays.dlse is None
    gradients.judge(spec, interpret_backward(plan_backward(spec, "host"), arrays), arrays)
