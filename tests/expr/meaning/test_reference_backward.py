"""The float64 gradients of whole specs: against differences of the float64 reference, and where nothing is seen."""

import importlib
from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from flashgen.errors import SpecError
from flashgen.expr.meaning.reference import reference
from flashgen.expr.meaning.reference_backward import backward
from flashgen.spec import Spec
from tests.expr.grammar import MASKS, conditions, declared, floats

EXTENTS = {"b": 2, "hq": 4, "hk": 2, "q_len": 4, "kv_len": 5}
STEP = 2.0**-10  # added to multiples of 2^-6 it is exact in float32, which tensors and params are
TOLERANCE = 1e-6
SOFTMAXES = ["softmax", "off_by_one", "none", {"sink": "c * slopes[h] - table[b, hk]"}]
SCORES = [
    "s",
    "c * tanh(s / c) + slopes[h] * (kv_idx - q_idx)",
    "s + bias[hk, q_idx, kv_idx]",
    "s * table[kv_idx - q_idx + 2, h] + table[1, h] * e",
    "max(s, e) * silu(s) - softplus(bias[hk, q_idx, kv_idx] * s)",
    "where(flags[h, kv_idx], s * c, log(1 + exp(s)) + slopes[hk])",
    "sigmoid(s) * c + floor(s) * 0.5",
]


def spec_of(score="s", mask="full", softmax="softmax", **given):
    sink = softmax["sink"] if isinstance(softmax, dict) else ""
    known = declared(score, mask, sink, given.get("scale", ""), given.get("weight", ""), given.get("output", ""))
    return Spec(**{"head_dim": {"qk": 4, "v": 3}, "dtype": "float32", "score": score, "mask": mask, "softmax": softmax, **known, **given})


def draw(spec, seed, broadcast=False):
    """Arguments by name, in multiples of 2^-6: q, k, v, and every tensor and param; do and dlse."""
    rng = np.random.default_rng(seed)
    b, hq, hk, q_len, kv_len = EXTENTS.values()
    shapes = {"q": (b, q_len, hq, 4), "k": (b, kv_len, hk, 4), "v": (b, kv_len, hk, 3)}
    shapes |= {t.name: tuple(EXTENTS.get(axis, axis) for axis in t.shape) for t in spec.tensors if t.dtype == "float32"}
    if broadcast:
        shapes |= {t.name: (1,) * len(t.shape) for t in spec.tensors if t.dtype == "float32"}
    found = {name: np.round(rng.standard_normal(shape) * 64) / 64 for name, shape in shapes.items()}
    for t in spec.tensors:
        shape = tuple(EXTENTS.get(axis, axis) for axis in t.shape)
        if t.dtype != "float32":
            found[t.name] = rng.integers(0, 4, shape, np.int32) if t.dtype == "int32" else rng.random(shape) < 0.5
    return found | {p.name: p.default for p in spec.params}, rng.standard_normal((b, q_len, hq, 3)), rng.standard_normal((b, hq, q_len))


def loss(spec, arguments, do, dlse):
    o, lse = reference(spec, **arguments)
    return np.sum(o * do) + np.sum(np.where(lse > -np.inf, lse * dlse, 0.0))


def judge(spec, seed, broadcast=False, most=99):
    """Gradients, at most so many, along a random direction against differences that agree among themselves: no kink lies between."""
    arguments, do, dlse = draw(spec, seed, broadcast)
    found = backward(spec, **arguments, do=do, dlse=dlse)
    gradients = {"q": found.q, "k": found.k, "v": found.v, **found.values}
    assert gradients.keys() >= {name for name, x in arguments.items() if np.asarray(x).dtype.kind == "f"}
    rng, judged = np.random.default_rng(seed + 1), 0
    for name in rng.permutation(list(gradients))[:most]:
        gradient = gradients[name]
        assert gradient.shape == np.shape(arguments[name])
        way = rng.integers(-1, 2, gradient.shape) if gradient.ndim else np.ones(())

        def difference(step, name=name, way=way):
            ends = [loss(spec, {**arguments, name: arguments[name] + way * d}, do, dlse) for d in (-step, step)]
            return (ends[1] - ends[0]) / (2 * step)

        steps = [difference(STEP / 2**i) for i in range(3)]
        better = [(4 * fine - coarse) / 3 for coarse, fine in pairwise(steps)]
        size = 1 + np.abs(better[1])
        if np.isfinite(better).all() and abs(better[1] - better[0]) < TOLERANCE / 4 * size:
            judged += 1
            assert abs((gradient * way).sum() - better[1]) < TOLERANCE * size, name
    return judged


@pytest.mark.parametrize("softmax", SOFTMAXES, ids=str)
@pytest.mark.parametrize("score", SCORES)
def test_against_differences(score, softmax):
    spec = spec_of(score, "causal", softmax)
    assert judge(spec, 1) >= 3


@given(
    st.sampled_from(SCORES), st.sampled_from(MASKS), st.sampled_from(["softmax", "off_by_one", "none", {"sink": "slopes[h]"}]), st.data()
)
def test_variants_against_differences(score, mask, softmax, data):
    judge(spec_of(score, mask, softmax), data.draw(st.integers(0, 999)), data.draw(st.booleans()), most=2)


@given(floats(2), conditions(1), st.integers(0, 999))
def test_any_spec_against_differences(score, mask, seed):
    try:
        spec = spec_of(score, mask)
        judge(spec, seed, most=2)
    except SpecError:
        assume(False)


@pytest.mark.parametrize(("hq", "hk"), [(4, 4), (4, 1), (1, 1)])
def test_groups_sum_over_their_heads(hq, hk, monkeypatch):
    monkeypatch.setitem(EXTENTS, "hq", hq)
    monkeypatch.setitem(EXTENTS, "hk", hk)
    assert judge(spec_of("s + slopes[h]", "window(2, 1)", {"sink": "slopes[h]"}), 3) == 4


def test_params_of_the_scale():
    assert judge(spec_of("c * tanh(s)", scale="c * e / d"), 4) == 5


WEIGHTS = [
    "slopes[h]",
    "e * bias[hk, q_idx, kv_idx] + c",
    "where(flags[h, kv_idx], sigmoid(table[kv_idx - q_idx, h]), 0)",
    "0.5 * (kv_idx - q_idx)",
]


@pytest.mark.parametrize("softmax", SOFTMAXES, ids=str)
@pytest.mark.parametrize("weight", WEIGHTS)
def test_weights_of_keys(weight, softmax):
    assert judge(spec_of("c * tanh(s / c) + slopes[h]", "causal", softmax, weight=weight), 2) >= 3


OUTPUTS = [
    "o * sigmoid(table[v_idx, h])",
    "o * slopes[h] + e",
    "tanh(c * o) * bias[hk, q_idx, v_idx]",
    "where(q_idx < 2, o * o, silu(o) + slopes[hk])",
]


@pytest.mark.parametrize("softmax", SOFTMAXES, ids=str)
@pytest.mark.parametrize("output", OUTPUTS)
def test_outputs(output, softmax):
    """Rows without keys have an o of 0 before it, and give what it reads its gradients."""
    assert judge(spec_of("c * tanh(s / c) + slopes[h]", "kv_idx < q_idx", softmax, output=output, weight="table[0, h]"), 2) >= 3


def test_of_a_layout():
    arguments, do, dlse = draw(spec_of("s + bias[hk, q_idx, kv_idx]", "causal"), 5)
    found = backward(spec_of("s + bias[hk, q_idx, kv_idx]", "causal"), **arguments, do=do, dlse=dlse)
    swapped = {name: x.swapaxes(1, 2) if name in "qkv" else x for name, x in arguments.items()}
    other = backward(spec_of("s + bias[hk, q_idx, kv_idx]", "causal", layout="bhsd"), **swapped, do=do.swapaxes(1, 2), dlse=dlse)
    for name in "qkv":
        np.testing.assert_array_equal(getattr(found, name), getattr(other, name).swapaxes(1, 2))
    np.testing.assert_array_equal(found.values["bias"], other.values["bias"])


def test_an_axis_of_one_has_the_sum():
    spec = spec_of("s * bias[hk, q_idx, kv_idx]", "causal", scale="1")
    arguments, do, dlse = draw(spec, 6)
    arguments["bias"] = arguments["bias"][:, :, :1]
    one = backward(spec, **arguments, do=do, dlse=dlse).values["bias"]
    arguments["bias"] = np.repeat(arguments["bias"], EXTENTS["kv_len"], 2)
    np.testing.assert_allclose(one, backward(spec, **arguments, do=do, dlse=dlse).values["bias"].sum(2, keepdims=True), atol=1e-12)


@pytest.mark.parametrize(
    ("score", "mask", "softmax"),
    [
        ("s", "kv_idx < 0", "softmax"),
        ("s", "kv_idx < 0", "off_by_one"),
        ("s", "kv_idx < 0", "none"),
        ("s + bias[hk, q_idx, kv_idx]", "causal", "softmax"),
        ("s + log(sqrt(-1 / bias[hk, q_idx, kv_idx]))", "causal", "softmax"),  # a slope that is infinite
        ("s + log(sqrt(-1 / bias[hk, q_idx, kv_idx]))", "causal", "off_by_one"),
    ],
)
def test_rows_without_keys_give_zeros(score, mask, softmax):
    spec = spec_of(score, mask, softmax)
    arguments, do, dlse = draw(spec, 7)
    if "bias" in arguments:
        arguments["bias"][:] = -np.inf
    found = backward(spec, **arguments, do=do, dlse=dlse)
    for gradient in (found.q, found.k, found.v, *found.values.values()):
        assert (gradient == 0).all()


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_what_a_row_does_not_see_never_matters(poison):
    spec = spec_of("s + bias[hk, q_idx, kv_idx]", "kv_idx < 3")
    arguments, do, dlse = draw(spec, 8)
    clean = backward(spec, **arguments, do=do, dlse=dlse)
    for name, axis in (("k", 1), ("v", 1), ("bias", 2)):
        arguments[name][(slice(None),) * axis + (slice(3, None),)] = poison
    found = backward(spec, **arguments, do=do, dlse=dlse)
    for x, y in ((found.q, clean.q), (found.k, clean.k), (found.v, clean.v), (found.values["bias"], clean.values["bias"])):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(("q_len", "kv_len"), [(0, 4), (3, 0), (0, 0)])
def test_nothing_to_do(q_len, kv_len, monkeypatch):
    monkeypatch.setitem(EXTENTS, "q_len", q_len)
    monkeypatch.setitem(EXTENTS, "kv_len", kv_len)
    spec = spec_of("s + bias[hk, q_idx, kv_idx]", "causal", {"sink": "slopes[h]"})
    arguments, do, dlse = draw(spec, 9)
    found = backward(spec, **arguments, do=do, dlse=dlse)
    assert not any(x.any() for x in (found.q, found.k, found.v, found.values["bias"]))
    np.testing.assert_allclose(found.values["slopes"], dlse.sum((0, 2)))  # lse is the sink


def test_integers_have_no_gradient():
    spec = spec_of("s + n * 0.5 + slopes[h]", "document(ids) & window(n, 0)")
    arguments, do, dlse = draw(spec, 10)
    assert backward(spec, **arguments, do=do, dlse=dlse).values.keys() == {"slopes"}


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_narrow_arrays_are_their_values(dtype):
    spec = spec_of("2 * tanh(s)", "causal")
    arguments, do, dlse = draw(spec, 11)
    narrow = {name: x.astype(dtype) for name, x in arguments.items()}
    found = backward(spec, **narrow, do=do.astype(dtype), dlse=dlse)
    wide = backward(spec, **{name: x.astype(np.float64) for name, x in narrow.items()}, do=do.astype(dtype).astype(np.float64), dlse=dlse)
    np.testing.assert_array_equal(found.q, wide.q)


@given(st.integers(1, 30))
def test_chunks_of_rows_change_nothing(elements):
    spec = spec_of("s + slopes[h] * kv_idx", "causal", {"sink": "c * slopes[h]"})
    arguments, do, dlse = draw(spec, 12)
    whole = backward(spec, **arguments, do=do, dlse=dlse)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.import_module("flashgen.expr.meaning.reference"), "ELEMENTS", elements)
        parts = backward(spec, **arguments, do=do, dlse=dlse)
    for x, y in (
        (whole.q, parts.q),
        (whole.k, parts.k),
        (whole.v, parts.v),
        *zip(whole.values.values(), parts.values.values(), strict=True),
    ):
        np.testing.assert_allclose(x, y, 1e-12, 1e-12)
