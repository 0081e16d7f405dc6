"""The bounds of a result: those of what is ordinary are the reference, those of large scores hold float32's results and no wrong ones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashgen.expr.meaning.bounds import bounds, distance
from flashgen.expr.meaning.reference import reference
from flashgen.spec import Spec

BIAS = {"bias": {"shape": ["q_len", "kv_len"], "dtype": "float32"}}
LARGE = [1e4, -1e6, 1e9, -1e9, 1e30, -1e30, float(np.finfo(np.float32).max), float(np.finfo(np.float32).min), np.inf, -np.inf, 0.0, 3.5]


def drawn(seed, q_len=5, kv_len=12):
    random = np.random.default_rng(seed)
    return [random.standard_normal((1, n, 1, 8)).astype(np.float32) for n in (q_len, kv_len, kv_len)]


def in_float32(q, k, v, bias):
    """Softmax as NumPy has it in float32: o [Sq, D], lse [Sq]."""
    with np.errstate(all="ignore"):
        x = q[0, :, 0] @ k[0, :, 0].T * np.float32(8**-0.5) + bias
        top = x.max(-1, keepdims=True)
        p = np.where(top == -np.inf, 0, np.exp(x - top))
        total = p.sum(-1, keepdims=True)
        return p / np.where(total == 0, 1, total) @ v[0, :, 0], (top + np.log(total))[:, 0]


@pytest.mark.parametrize("softmax", [None, "off_by_one", "none"])
def test_what_is_ordinary_is_known(softmax):
    q, k, v = drawn(1)
    spec = Spec(head_dim=8, dtype="float32", mask="causal", score="s * 9 + 20.0", softmax=softmax)
    found, (o, lse) = bounds(spec, q, k, v), reference(spec, q, k, v)
    for between, exact in ((found["o"], o), (found["lse"], lse)):
        np.testing.assert_array_equal(between[0], exact)
        np.testing.assert_array_equal(between[1], exact)


@given(st.integers(0, 99), st.lists(st.sampled_from(LARGE), min_size=1, max_size=4))
def test_results_of_float32_are_within(seed, large):
    q, k, v = drawn(seed)
    bias = np.random.default_rng(seed).choice(np.float32(large), (5, 12))
    found = bounds(Spec(head_dim=8, dtype="float32", score="s + bias[q_idx, kv_idx]", tensors=BIAS), q, k, v, bias=bias)
    o, lse = in_float32(q, k, v, bias)
    assert distance(o[None, :, None], found["o"]) < 1e-5
    assert distance(lse[None, None], found["lse"]) < 1e-5


def test_padding_by_a_large_bias_leaves_the_rest_known():
    """AlphaFold's 1e9 * (m - 1): the keys that count are as well known as without it."""
    q, k, v = drawn(3)
    bias = np.zeros((5, 12), np.float32)
    bias[:, 7:] = -1e9
    found = bounds(Spec(head_dim=8, dtype="float32", score="s + bias[q_idx, kv_idx]", tensors=BIAS), q, k, v, bias=bias)
    np.testing.assert_allclose(*found["o"], 1e-12)
    assert distance(v.mean(1, keepdims=True) + np.zeros_like(v[:, :5]), found["o"]) > 0.1


@pytest.mark.parametrize(("wrong", "what"), [(np.nan, "o"), (0.0, "o"), (99.0, "o"), (np.nan, "lse"), (-np.inf, "lse"), (np.inf, "lse")])
def test_nothing_else_passes(wrong, what):
    """Keys 8 to 11 share the weight in an unknown way, at 1e9; their v is between 1 and 2."""
    q, k, v = drawn(4)
    v[:, 8:] = 1 + np.random.default_rng(0).random((1, 4, 1, 8))
    bias = np.zeros((5, 12), np.float32)
    bias[:, 8:] = 1e9
    spec = Spec(head_dim=8, dtype="float32", score="s + bias[q_idx, kv_idx]", tensors=BIAS)
    found, results = bounds(spec, q, k, v, bias=bias), dict(zip(("o", "lse"), reference(spec, q, k, v, bias=bias), strict=True))
    assert distance(results[what], found[what]) == 0
    results[what].flat[0] = wrong
    assert distance(results[what], found[what]) > 0.5


def test_a_row_that_sees_nothing_has_one_result():
    q, k, v = drawn(5)
    bias = np.full((5, 12), -np.inf, np.float32)
    bias[1:] = 1e9
    found = bounds(Spec(head_dim=8, dtype="float32", score="s + bias[q_idx, kv_idx]", tensors=BIAS), q, k, v, bias=bias)
    assert [x[0, 0, 0] for x in found["lse"]] == [-np.inf] * 2
    assert (found["o"][0][0, 0] == 0).all()
    assert (found["o"][1][0, 0] == 0).all()
    assert [x[0, 0, 0] for x in found["entropy"]] == [0, 0]
    assert found["entropy"][1][0, 0, 1] > np.log(12)


def test_a_large_sink_is_known_as_float32_knows_it():
    spec = Spec(head_dim=8, dtype="float32", softmax={"sink": "sinks[h] - 0.25"}, tensors={"sinks": {"shape": ["hq"], "dtype": "float32"}})
    q, k, v = drawn(6)
    for keys in (0, 12):
        found = bounds(spec, q, k[:, :keys], v[:, :keys], sinks=np.float32([1e9]))
        assert distance(np.full((1, 1, 5), np.float32(1e9)), found["lse"]) == 0
        assert distance(np.full((1, 1, 5), -np.inf), found["lse"]) == np.inf


@pytest.mark.parametrize(
    "score", ["s + floor(sqrt(floor(kv_idx / 10.0)))", "s + sqrt(kv_idx)", "s + log(1.0 * kv_idx)", "s * sqrt(abs(s))"]
)
def test_roots_and_logarithms_at_0(score):
    q, k, v = drawn(7)
    spec = Spec(head_dim=8, dtype="float32", score=score)
    found, (o, lse) = bounds(spec, q, k, v), reference(spec, q, k, v)
    for between, exact in ((found["o"], o), (found["lse"], lse)):
        np.testing.assert_array_equal(between, [exact, exact])


def test_an_embedding_next_to_a_tie_may_be_rounded_either_way():
    spec = Spec(
        head_dim=2,
        dtype="bfloat16",
        norm={"eps": 0, "query": "w", "of": ["q"]},
        scale=100,
        tensors={"w": {"shape": [2], "dtype": "float32"}},
    )
    q, k = (np.ones((1, 1, 1, 2), spec.element.numpy) for _ in range(2))
    tie, between = 1 + 2.0**-8, 1 + 2.0**-9
    for w, doubtful in ((tie, True), (between, False)):
        known = bounds(spec, q, k, k, w=np.full(2, w, np.float32))
        low, high = (float(x[0, 0, 0]) for x in known["lse"])
        assert (high - low > 1) == doubtful, (w, low, high)
