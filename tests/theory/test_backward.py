"""The backward's equations are the derivatives of attention: proved by sympy for a few keys, on the very functions."""

import numpy as np
import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st
from sympy import Integer, Symbol, oo

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
