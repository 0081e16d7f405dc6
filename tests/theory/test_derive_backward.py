"""The derivation of the gradients: it begins with the derivative of a row, and every step keeps the value, in 50 digits."""

from dataclasses import replace

import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from flashgen.theory.derive import derive, mathml
from flashgen.theory.derive_backward import DLSE, DO, dv, dx, i
from flashgen.theory.rewrite import p
from tests.theory.test_derive import close, numbers

KEYS = 3


@given(data=st.data())
@settings(max_examples=3)
def test_it_is_the_derivative_and_every_step_keeps_it(data):
    derivation, (do, dlse) = derive("backward"), numbers(data.draw, 2)
    derivation = replace(derivation, definitions={**derivation.definitions, DO: do, DLSE: dlse})
    scores, values = (numbers(data.draw, KEYS) for _ in range(2))
    x, v = sympy.symbols("x:3"), sympy.symbols("v:3")
    whole = sum(sympy.exp(one) for one in x)
    loss = do * sum(sympy.exp(one) * value for one, value in zip(x, v, strict=True)) / whole + dlse * sympy.log(whole)
    known = dict(zip((*x, *v), (*(score * sympy.log(2) for score in scores), *values), strict=True))
    for key in range(KEYS):
        starts = {dx[i]: sympy.diff(loss, x[key]), dv[i]: sympy.diff(loss, v[key]), p[i]: sympy.exp(x[key]) / whole}
        for step in derivation.steps:
            expected = starts[step.left].evalf(60, subs=known)
            for e in (step.before, step.after):
                found = derivation.evaluate(e.subs(i, key + 1), scores, values, tile=1, at=1)
                assert close(expected, found), (step.why, key)


def test_its_recurrences_are_told():
    derivation = derive("backward")
    assert [str(e.lhs) for e in derivation.recurrences] == ["delta", "p[i]", "dp[i]", "dx[i]", "dv[i]"]
    assert str(derivation.recurrences[3].rhs) == "(-delta + dp[i])*p[i]"
    assert all(mathml(e).startswith("<mrow>") for e in derivation.recurrences)
    assert derivation.latex.startswith("\\begin{align*}")
