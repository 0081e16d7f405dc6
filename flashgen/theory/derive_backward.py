"""Derives the gradients of attention from softmax's definition: what a tile of the backward computes, from o and lse alone.

A loss reads a column y of the result and lse = log(sum of exp(x)); do and dlse are its gradients with respect to them. Key i is one of
the keys j. With more columns, dp[i] and do y sum over them. Sources: FlashAttention (2205.14135), appendix B.4; FlashAttention 2
(2307.08691), section 3.1.2.
"""

from functools import partial

import sympy

from flashgen.theory.derivation import Derivation, Trail
from flashgen.theory.rewrite import Expr, j, name, over, p, s, t, v, x, y

i = sympy.Symbol("i", integer=True, positive=True)
DO, DLSE, LSE, DELTA = sympy.symbols("do dlse lse delta", real=True)
dx, dv, dp = (sympy.IndexedBase(word) for word in ("dx", "dv", "dp"))
SUM = over(sympy.exp(x[j]))
WEIGHT = sympy.exp(x[i]) / SUM


def _slope() -> Trail:
    """The gradient of a score."""
    mean = over(p[j] * v[j])
    quotient = sympy.exp(x[i]) * v[i] / SUM - sympy.exp(x[i]) * over(sympy.exp(x[j]) * v[j]) / SUM**2
    return (
        Trail(dx[i], DO * quotient + DLSE * WEIGHT)
        .by(lambda e: e, "y = sum exp(x) v / sum exp(x) by the quotient rule, and lse = log(sum exp(x))")
        .by(lambda _: DO * (p[i] * v[i] - p[i] * mean) + DLSE * p[i], "p names a weight, exp(x) over the sum of exp(x)")
        .by(partial(name, meaning=mean, word=y), "the sum of p v is y, which the forward has left: no pass over the keys finds it again")
        .by(lambda _: p[i] * (DO * v[i] - (DO * y - DLSE)), "every term has the factor p")
        .by(lambda _: p[i] * (DO * v[i] - DELTA), "delta is one number of a row, found before the tiles")
        .by(partial(name, meaning=DO * v[i], word=dp[i]), "dp = do v^T is a product of tiles, as s = q k^T is")
    )


def _weight() -> Trail:
    """A weight anew."""
    return (
        Trail(p[i], WEIGHT)
        .by(lambda e: e, "a weight by its definition")
        .by(lambda _: sympy.exp(x[i] - LSE), "lse is the logarithm of the sum: one number of a row in place of one of each element")
        .by(lambda _: 2 ** (s[i] - LSE / sympy.log(2)), "in log2 units, as the forward has its exponentials")
    )


def _value() -> Trail:
    """The gradient of a value, as far as one row goes."""
    return Trail(dv[i], DO * p[i]).by(lambda e: e, "y is linear in v, and the factor is p; rows sum, as do those of dk = scale dx^T q")


def backward() -> Derivation:
    """The derivation of the gradients of one row. Those of q and k follow, as scale dx k and scale dx^T q: x is linear in both."""
    trails = _weight(), _slope(), _value()
    meanings: dict[Expr, Expr] = {
        dp: DO * v[t],
        DELTA: DO * y - DLSE,
        y: over(p[j] * v[j]),
        LSE: sympy.log(SUM),
        p: sympy.exp(x[t]) / SUM,
    }
    found = [trail.recurrence for trail in trails]
    own = [sympy.Eq(DELTA, DO * y - DLSE, evaluate=False), sympy.Eq(dp[i], DO * v[i], evaluate=False)]
    return Derivation(
        schedule="backward",
        steps=tuple(step for trail in trails for step in trail.steps),
        recurrences=(own[0], found[0], own[1], *found[1:]),
        definitions=meanings,
    )
