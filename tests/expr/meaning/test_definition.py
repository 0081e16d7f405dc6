"""The values of expressions: integers exact, floats that decide in float32 step by step, and agreement with what plans evaluate."""

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from flashgen.errors import Position
from flashgen.expr import Scope, evaluate, fold, parse
from flashgen.expr.language.deciding import approximate
from flashgen.expr.language.functions import FUNCTIONS
from flashgen.expr.language.nodes import Call, Name
from flashgen.expr.meaning.definition import meaning
from tests.expr.grammar import SCOPE, conditions, floats, ints
from tests.expr.meaning.test_evaluate import place

FLOATS = st.floats(width=32, allow_nan=False)
NAMES = Scope({"x": "float", "y": "float", "i": "int", "j": "int"}, {"t": ("int", ("kv_len",))})


def worth(text, **values):
    found = meaning(parse(text, NAMES, Position("<score>", 1, 1, text)), values)
    return found.item() if found.ndim == 0 else found


@given(FLOATS, FLOATS)
@example(16777217.0, 1.0)
@example(3.0, 10.0)
def test_a_float_decides_in_float32(x, y):
    """Each step rounded, as NumPy's float32 has it."""
    a, b = np.float32(x), np.float32(y)
    with np.errstate(all="ignore"):
        assert worth("x + y > y", x=x, y=y) == (a + b > b)
        assert worth("x / y * y == x", x=x, y=y) == (a / b * b == a)
        np.testing.assert_equal(worth("floor(x * y + x)", x=x, y=y), float(np.floor(a * b + a)))
        np.testing.assert_equal(worth("floor(sqrt(abs(x)) - y)", x=x, y=y), float(np.floor(np.sqrt(np.abs(a)) - b)))


def test_a_float_that_only_weighs_is_not_rounded():
    assert worth("x + y", x=2.0**24, y=1.0) == 2.0**24 + 1
    assert worth("where(x + y > x, 1.0, 0.0)", x=2.0**24, y=1.0) == 0
    assert worth("i + 0.0", i=2**24 + 1) == 2**24 + 1
    assert worth("where(i + 0.0 > x, 1, 0)", i=2**24 + 1, x=2.0**24) == 0


def test_what_passes_float32_is_infinite():
    assert worth("x * x * 0.0001", x=1e38) == np.inf
    assert worth("-x - x", x=3e38) == -np.inf
    assert worth("x + y", x=3.4028234663852886e38, y=1e30) > 3.4e38


@given(*[st.integers(-(2**31), 2**31 - 1)] * 2)
def test_integers_are_exact(i, j):
    assert worth("i * j + i", i=i, j=j) == i * j + i
    assert worth("i // 7 * 7 + i % 7 - j", i=i, j=j) == i - j
    assert worth("bit(i, j % 40 - 4)", i=i, j=j) == (0 <= j % 40 - 4 < 32 and bool(i % 2**32 >> (j % 40 - 4) & 1))


def test_an_integer_beyond_64_bits_has_no_meaning():
    i = Name("i", "int")
    square = Call("*", (i, i), "int")
    assert meaning(square, {"i": 2**31}) == 2**62
    with pytest.raises(OverflowError, match="64 bits"):
        meaning(Call("*", (square, i), "int"), {"i": 2**31})


def test_reads_outside_are_clamped_and_axes_checked():
    t = np.int32([10, 20, 30])
    assert worth("t[kv_idx - 5]", t=t, kv_idx=np.arange(9)).tolist() == [10] * 6 + [20, 30, 30]
    assert worth("t[kv_idx]", t=t[:1], kv_idx=np.arange(3)).tolist() == [10] * 3
    with pytest.raises(IndexError, match="kv_idx reaches 3"):
        worth("t[kv_idx]", t=t, kv_idx=np.arange(4))


@given(st.one_of(ints(2), floats(2), conditions(2)))
@example("tanh(s - s)")
def test_plans_evaluate_the_same_with_and_without_folding(text):
    """Rounding decides nothing here: no floor of what is not exact."""
    inexact = [f"{name}(" for name in FUNCTIONS if approximate(Call(name, (), "float"))] + ["(s", "s)"]
    assume("floor" not in text or not any(part in text for part in inexact))
    values = place(np.float32)
    node = parse(text, SCOPE, Position("<score>", 1, 1, text))
    expected = meaning(node, values)
    for found in (evaluate(node, values), evaluate(fold(node), values)):
        np.testing.assert_allclose(*(np.broadcast_to(x, (5, 6)).astype(float) for x in (found, expected)), 1e-4, 1e-3)
