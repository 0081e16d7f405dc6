"""The backward's equations are the derivatives of attention: proved by sympy for a few keys, on the very functions."""

import numpy as np
import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st
from sympy import Integer, Symbol, oo

from flashgen.expr import evaluate
from flashgen.expr.meaning.gradient import derivatives
from flashgen.expr.meaning.reference import reference
from flashgen.expr.meaning.reference_backward import backward
from flashgen.spec import Spec
from flashgen.theory.backward import row_term, score_gradient, sink_gradient, weights
from flashgen.theory.schedule import natural, symbolic

SINK = Symbol("z", real=True)


def objects(values, *shape):
    return np.array(values, dtype=object).reshape(shape)


def attention(scores, sink, values):
    """o and lse of one row, natural units, as the definition says."""
    terms = [sympy.exp(x) for x in scores]
    total = sum(terms, sympy.exp(sink))
    return sum((p * v for p, v in zip(terms, values, strict=True)), Integer(0)) / total, sympy.log(total)


def is_zero(difference):
    natural = difference.replace(lambda x: x.is_Pow and x.base == 2, lambda x: sympy.exp(sympy.expand(x.exp * sympy.log(2))))
    return sympy.simplify(natural) == 0


@pytest.mark.parametrize("sink", [-oo, SINK])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_they_are_the_derivatives(n, sink):
    x, v = sympy.symbols(f"x:{n}", real=True), sympy.symbols(f"v:{n}", real=True)
    do, dlse = sympy.symbols("do dlse", real=True)
    o, lse = attention(x, sink, v)
    loss = do * o + dlse * lse

    xp, log2 = symbolic(), sympy.log(2)
    in_log2 = objects([lse / log2], 1)
    delta = row_term(objects([do], 1, 1), objects([o], 1, 1), objects([dlse], 1))
    p = weights(objects([score / log2 for score in x], 1, n), in_log2, xp)
    dscore = score_gradient(p, objects([do * value for value in v], 1, n), delta)
    for j in range(n):
        assert is_zero(dscore[0, j] - sympy.diff(loss, x[j]))
        assert is_zero(p[0, j] * do - sympy.diff(loss, v[j]))
    if sink == SINK:
        assert is_zero(sink_gradient(objects([sink / log2], 1), in_log2, delta, xp)[0] - sympy.diff(loss, sink))


def test_hidden_keys_and_rows_without_keys_have_no_gradient():
    s = np.array([[0.0, -np.inf, 1.0], [-np.inf, -np.inf, -np.inf]])
    lse = np.array([np.log2(3.0), -np.inf])
    p = weights(s, lse)
    np.testing.assert_allclose(p, [[1 / 3, 0, 2 / 3], [0, 0, 0]])
    dscore = score_gradient(p, np.full((2, 3), 5.0), np.array([2.0, -7.0]))
    np.testing.assert_allclose(dscore, [[1, 0, 2], [0, 0, 0]])
    assert sink_gradient(np.array([-np.inf]), np.array([-np.inf]), np.array([3.0])) == 0


@given(st.integers(0, 99), st.integers(1, 6), st.integers(1, 6))
def test_gradients_of_a_row_sum_to_that_of_its_lse(seed, rows, keys):
    """The same added to all scores of a row and to its sink moves lse by it, and o not at all."""
    rng = np.random.default_rng(seed)
    s, sink, v = rng.standard_normal((rows, keys)), rng.standard_normal(rows), rng.standard_normal((keys, 4))
    do, dlse = rng.standard_normal((rows, 4)), rng.standard_normal(rows)
    lse = np.log(np.exp(s).sum(-1) + np.exp(sink))
    p = weights(s, lse, natural())
    delta = row_term(do, p @ v, dlse)
    total = score_gradient(p, do @ v.T, delta).sum(-1) + sink_gradient(sink, lse, delta, natural())
    np.testing.assert_allclose(total, dlse, atol=1e-12)


@pytest.mark.parametrize("tile", [1, 3, 4, 9])
@pytest.mark.parametrize("shift", [0.0, -120.0])
def test_tiles_of_keys_add_up_to_the_reference(tile, shift):
    """Scores far below 0, as lse then is, with columns beyond the last key in the last tile."""
    score = "c * tanh(s / c) + low"
    spec = Spec(head_dim=4, dtype="float32", score=score, mask="causal", softmax={"sink": "low"}, params={"c": 3.0, "low": shift})
    rng = np.random.default_rng(1)
    q, k, v, do = rng.standard_normal((4, 1, 9, 1, 4))
    dlse = rng.standard_normal((1, 1, 9))
    o, lse = reference(spec, q, k, v)
    wanted, slope = backward(spec, q, k, v, do, dlse), derivatives(spec).s

    q, k, v, do, o, lse = (*(x[0, :, 0] for x in (q, k, v, do, o)), lse[0, 0] / np.log(2))
    delta, dq, dk, dv = row_term(do, o, dlse[0, 0]), np.zeros((9, 4)), np.zeros((9, 4)), np.zeros((9, 4))
    for first in range(0, 9, tile):
        keys, columns = np.arange(first, min(first + tile, 9)), np.arange(first, first + tile)
        padded = [np.pad(x[keys], ((0, tile - len(keys)), (0, 0))) for x in (k, v)]
        s = q @ padded[0].T / 2
        scores = 3 * np.tanh(s / 3) + shift
        seen = (columns <= np.arange(9)[:, None]) & (columns < 9)
        p = weights(np.where(seen, scores, -np.inf) / np.log(2), lse)
        dscore = score_gradient(p, do @ padded[1].T, delta)
        ds = dscore * evaluate(slope, {"s": s, "c": 3.0})
        dq += ds @ padded[0] / 2
        dk[keys], dv[keys] = (ds.T @ q / 2)[: len(keys)], (p.T @ do)[: len(keys)]
    for found, name in ((dq, "q"), (dk, "k"), (dv, "v")):
        np.testing.assert_allclose(found, getattr(wanted, name)[0, :, 0], atol=1e-12)
    np.testing.assert_allclose(wanted.values["low"], dlse.sum(), atol=1e-9)  # in every score and in the sink, it moves lse alone
