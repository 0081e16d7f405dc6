"""The rows of functions and operators: no cell is empty, and what one says of a function agrees with what the others say."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from flashgen.errors import Position
from flashgen.expr import Scope, evaluate, parse
from flashgen.expr.language.bound import INF, UNITS, Bound, Term
from flashgen.expr.language.function import Function
from flashgen.expr.language.functions import FUNCTIONS, row
from flashgen.expr.language.nodes import Call, Name
from flashgen.expr.language.operators import OPERATORS
from flashgen.expr.meaning.definition import meaning
from flashgen.expr.prove.rounding import bound
from flashgen.expr.prove.signs import Signs

ROWS = [x for x in (*OPERATORS.values(), *FUNCTIONS.values()) if isinstance(x, Function)]
SMOOTH = [x for x in ROWS if x.takes in ("floats", "numbers") and x.gives != "bool"]
POSITIVE = ("log", "sqrt", "**")  # where float32 has a value, for the first argument

each = pytest.mark.parametrize("function", ROWS, ids=lambda x: x.name)
each_step_free = pytest.mark.parametrize("function", [x for x in SMOOTH if not x.decides], ids=lambda x: x.name)
each_smooth = pytest.mark.parametrize("function", SMOOTH, ids=lambda x: x.name)


def numbers(function, low=-4.0, high=4.0):
    """Arguments of a function of floats, where it has a value."""
    draw = st.floats(low, high, width=32)
    first = draw.map(lambda x: abs(x) + 0.125) if function.name in POSITIVE else draw
    return st.tuples(first, *[draw.filter(lambda x: abs(x) > 0.125)] * (len(function.parameters) - 1))


class Arrays:
    """A machine of NumPy's float64."""

    def __init__(self, function):
        self.function = function

    def itself(self, *args):
        return self.function.numpy(*args)

    def library(self, name, *args):
        return row(name).numpy(*args)

    def instruction(self, name, x):
        return {"exp2": np.exp2, "log2": np.log2, "tanh": np.tanh, "sqrt": np.sqrt, "inverse": lambda x: 1 / x}[name](x)

    def fma(self, a, b, c):
        return a * b + c


@each
def test_no_cell_is_empty(function):
    assert all(getattr(function, cell.name) not in (None, "") for cell in dataclasses.fields(function))
    assert function.cuda
    assert len(function.derivative) in (0, len(function.parameters), len(function.parameters) - (function.takes == "choice"))


@pytest.mark.parametrize("cell", [cell.name for cell in dataclasses.fields(Function)][2:-2])
def test_an_empty_cell_is_an_error_that_names_it(cell):
    with pytest.raises(ValueError, match=f"the function 'tanh' has no {cell}"):
        dataclasses.replace(row("tanh"), **{cell: None})


def test_an_unknown_operation_may_be_off_by_anything():
    s = Name("s", "float")
    assert bound(Call("unheard_of", (Call("tanh", (s,), "float"),), "float"), {}, lambda _: 1e-3).error == INF
    assert bound(Call("unheard_of", (s,), "float"), {}, lambda _: 0.0).error == INF


@each_smooth
@given(st.data())
def test_constants_arrays_and_the_reference_agree(function, data):
    args = data.draw(numbers(function))
    python = float(function.python(*args))
    arrays = [np.float64([x]) for x in args]
    np.testing.assert_allclose(function.numpy(*arrays), python, 1e-12, 1e-12)
    np.testing.assert_allclose(function.definition(*arrays), python, 1e-12, 1e-12)
    single = function.numpy(*(np.float32([x]) for x in args))
    assert single.dtype == (np.int64 if function.gives == "int" else np.float32)


@each_smooth
@given(st.data())
def test_its_forms_are_the_function(function, data):
    args = [np.float64([x]) for x in data.draw(numbers(function))]
    for form in (function.library, function.fast, *(short.make for short in function.short)):
        np.testing.assert_allclose(form(Arrays(function), *args), function.numpy(*args), 1e-9, 1e-12)


@each_step_free
@given(st.data())
def test_derivatives_are_slopes(function, data):
    args = [float(x) for x in data.draw(numbers(function))]
    assume(function.name not in ("min", "max") or abs(args[0] - args[-1]) > 1e-3)
    assume(function.name != "abs" or abs(args[0]) > 1e-3)
    scope = Scope(dict.fromkeys(function.parameters, "float"), {}, {}, masks=False)
    for i, text in enumerate(function.derivative):
        step = 1e-6 * max(1.0, abs(args[i]))
        ends = [function.numpy(*(np.float64(x + d * (j == i)) for j, x in enumerate(args))) for d in (-step, step)]
        node = parse(text, scope, Position("<derivative>", 1, 1, text))
        found = evaluate(node, dict(zip(function.parameters, map(np.float64, args), strict=True)))
        np.testing.assert_allclose(found, (ends[1] - ends[0]) / (2 * step), 1e-4, 1e-4)


@each_smooth
@given(st.data())
def test_intervals_and_errors_hold(function, data):
    first, second = (
        tuple(map(abs, x)) if function.name == "/" else x for x in (data.draw(numbers(function)), data.draw(numbers(function)))
    )
    errors = [data.draw(st.sampled_from([0.0, 1e-6, 0.01, 0.1])) for _ in first]
    args = [Bound(min(a, b), max(a, b), error) for a, b, error in zip(first, second, errors, strict=True)]
    at = [data.draw(st.floats(x.low, x.high)) for x in args]
    off = [x + e * data.draw(st.floats(-1, 1)) for x, e in zip(at, errors, strict=True)]
    low, high = function.interval(*args)
    exact, moved = (float(function.numpy(*map(np.float64, x))) for x in (at, off))
    assert low - 1e-9 * abs(low) <= exact + 1e-12
    assert exact <= high + 1e-9 * abs(high) + 1e-12
    assert abs(moved - exact) <= function.error(*args) * (1 + 1e-9) + 1e-9


@each_step_free
@given(st.data())
def test_terms_hold_what_float32_may_be_off(function, data):
    """Up to a factor of 2: a product is off by what either factor is."""
    args = [np.float64(x) for x in data.draw(numbers(function))]
    sizes = [np.abs(x) * data.draw(st.floats(1.0, 1e3)) for x in args]
    off = [x + UNITS * size * data.draw(st.floats(-1, 1)) for x, size in zip(args, sizes, strict=True)]
    value, moved = float(function.definition(*args)), float(function.definition(*off))
    terms = float(function.terms(value, *map(Term, args, sizes)))
    assert abs(moved - value) <= UNITS * terms * 2.1 + 1e-12


@each_smooth
@given(st.data())
def test_signs_hold(function, data):
    args = data.draw(numbers(function))
    assume(function.name not in ("//", "%"))
    names = [Name(f"x{i}", "float") for i, _ in enumerate(args)]
    positives = {name.name: frozenset() for name, x in zip(names, args, strict=True) if x > 0}
    signs = Signs(positives, frozenset(name.name for name, x in zip(names, args, strict=True) if x >= 0))
    node, value = Call(function.name, tuple(names), "float"), function.python(*args)
    assert value > 0 or signs.positive(node) is None
    assert value >= 0 or signs.nonnegative(node) is None


SCOPE = Scope({"x": "float", "n": "int", "m": "int"}, {}, {}, masks=False)


def worth(text, **values):
    return meaning(parse(text, SCOPE, Position("<score>", 1, 1, text)), values).item()


FORMULAS = {
    "softplus": lambda x: max(x, 0) + math.log1p(math.exp(-abs(x))),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "gelu": lambda x: 0.5 * x * math.erfc(-x / math.sqrt(2)),
}


@pytest.mark.parametrize("name", FORMULAS)
@given(st.floats(-40, 40, width=32))
def test_functions_that_are_expressions(name, x):
    assert worth(f"{name}(x)", x=x) == pytest.approx(FORMULAS[name](x), rel=1e-7, abs=1e-7)


@pytest.mark.parametrize(
    ("x", "whole", "nearest"),
    [
        (2.5, 2, 2.0),
        (3.5, 3, 4.0),
        (-2.5, -2, -2.0),
        (-0.75, 0, -1.0),
        (3e9, 2**31 - 1, 3e9),
        (-3e9, -(2**31), -3e9),
        (math.inf, 2**31 - 1, math.inf),
        (-math.inf, -(2**31), -math.inf),
        (math.nan, 0, math.nan),
    ],
)
def test_whole_numbers(x, whole, nearest):
    assert worth("int(x)", x=x) == whole
    np.testing.assert_equal(worth("round(x)", x=x), np.float64(np.float32(nearest)))


@given(st.integers(-(2**7), 2**7), st.integers(0, 8))
def test_powers_of_integers_are_exact(n, exponent):
    assert worth(f"min(max(n, -128), 128) ** {exponent}", n=n) == n**exponent
    assert worth("int(n)", n=n) == n


def test_powers():
    assert worth("x ** 2", x=-3.0) == 9
    assert worth("x ** 0.5", x=2.0) == pytest.approx(2**0.5)
    assert worth("2.0 ** n", n=-3) == 0.125
    assert worth("-x ** 2", x=3.0) == -9
    assert np.isnan(worth("x ** 0.5", x=-1.0))
