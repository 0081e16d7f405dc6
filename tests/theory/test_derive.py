"""Every step of every derivation has the same value before and after, in 50 digits; and where a derivation ends, the schedule begins."""

import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

import flashgen
from flashgen.errors import PlanError
from flashgen.theory.derive import derive, mathml
from flashgen.theory.rewrite import T, b, l, m, o, t, y
from flashgen.theory.schedule import State, finish, passes, schedules, symbolic

CLOSE = sympy.Float(10) ** -45  # of 50 digits
TILES = 3


def close(x, z):
    return abs(x - z) <= CLOSE * (1 + abs(x))


def numbers(draw, count):
    """Draws numbers of 50 digits, none round, in no order: exponents far apart and near."""
    random = np.random.default_rng(draw(st.integers(0, 2**32), "numbers"))
    spread = draw(st.sampled_from([1, 12, 40]), "spread")
    return [
        sympy.Float(f"{random.uniform(-spread, spread):.17f}{random.integers(10**17, 10**18)}{random.integers(10**16)}", 60)
        for _ in range(count)
    ]


@pytest.mark.parametrize("name", schedules())
@given(data=st.data())
@settings(max_examples=3)
def test_every_step_keeps_the_value(name, data):
    tile = data.draw(st.integers(1, 2), "tile")
    derivation, scores, values = derive(name), *(numbers(data.draw, tile * TILES) for _ in range(2))
    for step in derivation.steps:
        for at in range(1, TILES + 1):
            before, after = (derivation.evaluate(e, scores, values, tile, at) for e in (step.before, step.after))
            assert close(before, after), (step.why, at, before, after)


@pytest.mark.parametrize("name", schedules())
@given(data=st.data())
@settings(max_examples=2)
def test_the_recurrences_are_what_the_schedule_does(name, data):
    """The functions that the interpreter runs, on numbers of 50 digits, beside the words of the derivation."""
    softmax, tile = schedules()[name], 1 if schedules()[name].materialize else data.draw(st.integers(1, 2), "tile")
    derivation, scores, values = derive(name), *(numbers(data.draw, tile * TILES) for _ in range(2))
    state, width = State(*(np.array(x, object) for x in ([-sympy.oo], [sympy.S.Zero], [[sympy.S.Zero]]))), tile
    if softmax.materialize:
        width = tile * TILES
    for step in passes(softmax, symbolic()):
        for first in range(0, len(scores), width):
            keys = slice(first, first + width)
            s, v = np.array(scores[keys], object).reshape(1, -1), np.array(values[keys], object).reshape(-1, 1)
            state = step(state, s, lambda p, v=v: p @ v)
    attended, lse = finish(softmax, state, symbolic())
    last = {word: derivation.evaluate(word[T], scores, values, tile, TILES) for word in (m, l)}
    assert close(last[m], state.m[0].evalf(50))
    assert close(last[l], state.l[0].evalf(50))
    wanted = next(e.rhs for e in derivation.recurrences if e.lhs == y)
    assert close(derivation.evaluate(wanted, scores, values, tile, TILES), attended[0, 0].evalf(50))
    assert close(2 ** lse[0].evalf(50), last[l] * 2 ** last[m])


def test_a_wrong_step_is_seen():
    one, scores, values = derive("one_pass"), *([sympy.Integer(n) for n in range(first, first + 4)] for first in (1, 5))
    wrong = l[t - 1] + (one.recurrences[1].rhs - 2 ** (m[t - 1] - m[t]) * l[t - 1])
    right, found = (one.evaluate(e, scores, values, 2, 2) for e in (one.recurrences[1].rhs, wrong))
    assert not close(right, found)


@pytest.mark.parametrize("name", schedules())
def test_it_prints(name):
    derivation = flashgen.derive(name)
    assert str(derivation).startswith(f"{name}:\n  y = Sum(exp(x[j])*v[j], (j, 1, T*b))/Sum(exp(x[j]), (j, 1, T*b))\n")
    assert derivation.latex.startswith("\\begin{align*}\n&y = \\frac{\\sum_{j=1}^{T b}")
    assert derivation.latex.count("\\\\\n") == len(derivation.steps) + len(derivation.recurrences) - 1
    assert all(mathml(step.equation).startswith("<mrow>") for step in derivation.steps)
    assert all(step.why for step in derivation.steps)


def test_two_passes_and_one_differ_in_o_alone():
    two, one = derive("two_pass"), derive("one_pass")
    assert [e.lhs for e in one.recurrences] == [m[t], l[t], o[t], y]
    assert [a == c for a, c in zip(two.recurrences, one.recurrences, strict=True)] == [True, True, False, True]
    assert {T, b, t} <= one.recurrences[2].free_symbols | {T}


def test_an_unknown_schedule_is_named():
    with pytest.raises(PlanError, match="unknown schedule 'two_passes': did you mean 'two_pass'"):
        derive("two_passes")
