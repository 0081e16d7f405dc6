"""The float64 reference: against the formula written out, at the edges of masks, and where scores are not finite."""

import importlib
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashgen.expr.meaning.reference import reference as attention
from flashgen.spec import Spec

module = importlib.import_module("flashgen.expr.meaning.reference")


def draw(seed, *shapes, dtype=np.float32):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def by_formula(q, k, v, score, mask, scale):
    """Row by row over the keys that are visible, as the definition says: q [Sq, D], k [Sk, D], v [Sk, Dv]."""
    o, lse = np.zeros((len(q), v.shape[-1])), np.full(len(q), -np.inf)
    for i in range(len(q)):
        seen = [j for j in range(len(k)) if mask(i, j)]
        if seen:
            x = np.array([score(scale * (q[i].astype(np.float64) @ k[j]), i, j) for j in seen])
            p = np.exp(x - x.max())
            o[i], lse[i] = p / p.sum() @ v[seen].astype(np.float64), x.max() + np.log(p.sum())
    return o, lse


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_formula(layout, dtype):
    q, k, v = draw(1, (2, 7, 4, 16), (2, 9, 2, 16), (2, 9, 2, 8), dtype=dtype)
    slopes = np.float32([0.5, 0.25, 2.0, 1.0])
    spec = Spec(
        head_dim={"qk": 16, "v": 8},
        dtype="float32",
        layout=layout,
        mask="causal & window(w, 0)",
        score="c * tanh(s / c) - slopes[h] * (q_idx + kv_len - q_len - kv_idx)",
        params={"w": 4, "c": 9.0},
        tensors={"slopes": {"shape": ["hq"], "dtype": "float32"}},
    )
    arrays = [q, k, v] if layout == "bshd" else [x.swapaxes(1, 2) for x in (q, k, v)]
    o, lse = attention(spec, *arrays, slopes=slopes, c=2.0)
    assert o.dtype == lse.dtype == np.float64
    o = o if layout == "bshd" else o.swapaxes(1, 2)
    for b, h in np.ndindex(2, 4):
        one = q[b, :, h].astype(np.float64), k[b, :, h // 2].astype(np.float64), v[b, :, h // 2].astype(np.float64)
        expected = by_formula(
            *one, lambda s, i, j, h=h: 2.0 * np.tanh(s / 2.0) - slopes[h] * (i + 2 - j), lambda i, j: i - 2 <= j <= i + 2, 0.25
        )
        np.testing.assert_allclose(o[b, :, h], expected[0], 1e-12, 1e-12)
        np.testing.assert_allclose(lse[b, h], expected[1], 1e-12, 1e-12)


def counts(mask, length=10, **params):
    """Counts the keys that each row sees: q = 0, so every one weighs the same, and the sum of what is seen has a bit for each."""
    spec = Spec(head_dim=16, dtype="float32", mask=mask, params=params)
    q = k = np.zeros((1, length, 1, 16), np.float32)
    v = np.broadcast_to(np.float32(2.0) ** np.arange(length, dtype=np.float32)[None, :, None, None], q.shape)
    o, lse = attention(spec, q, k, v)
    number = np.exp(lse[0, 0]).round().astype(int)
    sums = (o[0, :, 0, 0] * number).round().astype(int)
    assert [f"{x:b}".count("1") for x in sums] == number.tolist()
    return number.tolist()


@pytest.mark.parametrize(
    ("mask", "seen"),
    [
        ("window(2, 1)", [2, 3, 4, 4, 4, 4, 4, 4, 4, 3]),
        ("window(3, 0)", [1, 2, 3, 4, 4, 4, 4, 4, 4, 4]),
        ("window(0, 0)", [1] * 10),
        ("window(-1, 0)", list(range(1, 11))),
        ("window(9, 0)", list(range(1, 11))),
        ("window(8, 0)", [*range(1, 10), 9]),
        ("window(-1, -1)", [10] * 10),
        ("window(-1, 2)", [3, 4, 5, 6, 7, 8, 9, 10, 10, 10]),
        ("causal & window(3, 5)", [1, 2, 3, 4, 4, 4, 4, 4, 4, 4]),
        ("chunk(4)", [4] * 8 + [2] * 2),
        ("prefix(3)", [3] * 10),
    ],
)
def test_edges_of_masks(mask, seen):
    assert counts(mask) == seen


def test_a_window_side_may_be_a_param():
    assert counts("window(w, 0)", w=3) == counts("window(3, 0)")
    assert counts("window(w, 0)", w=-1) == counts("causal")


def test_causal_with_more_queries_than_keys():
    q, k, v = draw(2, (1, 5, 1, 16), (1, 2, 1, 16), (1, 2, 1, 16))
    o, lse = attention(Spec(head_dim=16, dtype="float32", mask="causal"), q, k, v)
    assert (o[0, :3] == 0).all()
    assert (lse[0, 0, :3] == -np.inf).all()
    np.testing.assert_allclose(o[0, 3, 0], v[0, 0, 0])


def test_documents_are_aligned_at_the_end():
    spec = Spec(head_dim=16, dtype="float32", mask="document(ids)", tensors={"ids": {"shape": ["b", "kv_len"], "dtype": "int32"}})
    q, k, v = draw(3, (1, 2, 1, 16), (1, 5, 1, 16), (1, 5, 1, 16))
    _, lse = attention(spec, 0 * q, k, v, ids=np.int32([[0, 0, 1, 1, 0]]))
    assert np.exp(lse[0, 0]).round().tolist() == [2, 3]


@pytest.mark.parametrize(("q_len", "kv_len"), [(0, 4), (3, 0), (0, 0)])
def test_nothing_to_do(q_len, kv_len):
    q, k, v = draw(4, (2, q_len, 2, 16), (2, kv_len, 1, 16), (2, kv_len, 1, 16))
    o, lse = attention(Spec(head_dim=16, dtype="float32", mask="causal"), q, k, v)
    assert o.shape == (2, q_len, 2, 16)
    assert (o == 0).all()
    assert lse.shape == (2, 2, q_len)
    assert (lse == -np.inf).all()


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_what_a_row_does_not_see_never_matters(poison):
    q, k, v = draw(5, (1, 4, 1, 16), (1, 4, 1, 16), (1, 4, 1, 16))
    spec = Spec(head_dim=16, dtype="float32", mask="causal")
    clean, _ = attention(spec, q, k, v)
    k[0, 3], v[0, 3] = poison, poison
    o, lse = attention(spec, q, k, v)
    np.testing.assert_array_equal(o[0, :3], clean[0, :3])
    assert np.isnan(o[0, 3]).all()
    assert np.isnan(lse[0, 0, 3])


def test_scores_that_are_seen_and_not_finite():
    bias = np.zeros((4, 4), np.float32)
    bias[0, 0], bias[1, 1], bias[2, 2], bias[3] = np.inf, np.nan, -np.inf, -np.inf
    spec = Spec(head_dim=16, dtype="float32", score="s + bias[q_idx, kv_idx]", tensors={"bias": {"shape": [4, 4], "dtype": "float32"}})
    q, k, v = draw(6, (1, 4, 1, 16), (1, 4, 1, 16), (1, 4, 1, 16))
    o, lse = attention(spec, q, k, v, bias=bias)
    assert np.isnan(o[0, :2]).all()
    assert np.isnan(lse[0, 0, :2]).all()
    assert np.isfinite(o[0, 2]).all()
    assert (o[0, 3] == 0).all()
    assert lse[0, 0, 3] == -np.inf


@given(st.integers(1, 40), st.integers(0, 40), st.integers(1, 64))
def test_chunks_of_rows_change_nothing(q_len, kv_len, elements):
    q, k, v = draw(7, (1, q_len, 2, 8), (1, kv_len, 1, 8), (1, kv_len, 1, 8))
    spec = Spec(head_dim=8, dtype="float32", mask="causal", score="s * (1 + 0.01 * (q_idx - kv_idx))")
    whole = attention(spec, q, k, v)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ELEMENTS", elements)
        parts = attention(spec, q, k, v)
    for x, y in zip(whole, parts, strict=True):
        np.testing.assert_allclose(x, y, 1e-12, 1e-12)


def test_importing_is_light():
    check = "import sys, flashgen.expr; assert not {'sympy', 'pydantic', 'jinja2'} & set(sys.modules), sys.modules.keys()"
    subprocess.run([sys.executable, "-c", check], check=True)
