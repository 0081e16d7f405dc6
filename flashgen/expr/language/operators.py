"""The operators of the language, a row each, and those that its text has no sign for: `neg`, and conversions."""

import math
import operator
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from flashgen.expr.language.bound import (
    INF,
    UNITS,
    Bound,
    Term,
    added,
    anywhere,
    corners,
    exactly,
    inverse,
    kept,
    multiplied,
    summed,
    times,
    told,
    within,
)
from flashgen.expr.language.function import Function, Sign, plain
from flashgen.expr.language.instructions import Instructions
from flashgen.expr.language.nodes import LONG

ONE = Instructions(multiply=1)
OTHER = Instructions(other=1)
DIVISION = Instructions(special=1, multiply=8)  # multiplies and adds of one that rounds to the nearest, besides its reciprocal
LONG_BIT = "long bit"  # a bit of a number of 64
LONG_INT = "long int"  # the integer that is nearest to such a number
INT = (-(2**31), 2**31 - 1)
UNKNOWN: tuple[Sign, Sign] = ("never", "never")

_Row = partial(Function, parameters=("a", "b"), gives="same", library=plain, fast=plain, short=())


_Division = partial(
    _Row, takes="integers", derivative=(), interval=anywhere, error=told, terms=exactly, cost=OTHER
)  # of integers, towards minus infinity; the divisor is positive, but a length may be 0: then 1 divides
_Condition = partial(_Row, gives="bool", derivative=(), interval=within(0.0, 1.0), error=told, terms=exactly, sign=UNKNOWN, cost=OTHER)


def _comparison(name: str, run: Callable[..., Any]) -> Function:
    both = {"float": name, "int": name}
    return _Condition(name=name, takes="numbers", python=run, numpy=run, definition=run, cuda=both, decided=name, decides=True)


def _logic(name: str, run: Callable[..., Any], cuda: str, *parameters: str) -> Function:
    alike = {"python": run, "numpy": run, "definition": run}
    return _Condition(name=name, takes="conditions", parameters=parameters, cuda={"bool": cuda}, decided=name, **alike)


def _quotient(_: Any, a: Term, b: Term) -> Any:
    divisor = np.abs(b.value)
    return a.size / divisor * (b.size / divisor)


def _powers(a: Bound, b: Bound) -> tuple[float, float]:
    """The interval of a ** b for a > 0: powers rise or fall along each axis."""
    logs = (math.log(a.low) if a.low < INF else INF, math.log(a.high) if a.high < INF else INF)
    exponents = [times(x, y) for x, y in product(logs, (b.low, b.high))]
    return _exp(min(exponents)), _exp(max(exponents))


def _power_error(a: Bound, b: Bound) -> float:
    """The error of a power, by its steepest slope where its arguments may lie."""
    if not (a.error or b.error):
        return 0.0
    least = a.low - a.error
    if least <= 0 or INF in (a.high, b.size):
        return INF
    around = Bound(least, a.high + a.error), Bound(b.low - b.error, b.high + b.error)
    logs = max(abs(math.log(x)) for x in (least, a.high + a.error))
    return times(_powers(*around)[1], around[1].size / least * a.error + logs * b.error)


@np.errstate(all="ignore")
def _power_terms(value: Any, a: Term, b: Term) -> Any:
    """The terms of a power, by its relative error; nothing is known of a power that may be off by all of itself."""
    off = np.abs(b.value) * a.size / np.abs(a.value) + np.abs(np.log(np.abs(a.value))) * b.size
    return np.where(off * UNITS < 0.5, np.abs(value) * (1 + 2 * off), INF)


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else INF


_ROWS = (
    _Row(
        name="+",
        takes="numbers",
        python=operator.add,
        numpy=operator.add,
        definition=operator.add,
        cuda={"float": "+", "int": "+"},
        decided="__fadd_rn",
        derivative=("1.0", "1.0"),
        interval=lambda a, b: (a.low + b.low, a.high + b.high),
        error=added,
        terms=summed,
        sign=("sum", "every"),
        cost=ONE,
    ),
    _Row(
        name="-",
        takes="numbers",
        python=operator.sub,
        numpy=operator.sub,
        definition=operator.sub,
        cuda={"float": "-", "int": "-"},
        decided="__fsub_rn",
        derivative=("1.0", "-1.0"),
        interval=lambda a, b: (a.low - b.high, a.high - b.low),
        error=added,
        terms=summed,
        sign=UNKNOWN,
        cost=ONE,
    ),
    _Row(
        name="*",
        takes="numbers",
        python=operator.mul,
        numpy=operator.mul,
        definition=operator.mul,
        cuda={"float": "*", "int": "*"},
        decided="__fmul_rn",
        derivative=("b", "a"),
        interval=corners,
        error=multiplied,
        terms=lambda _, a, b: a.size * b.size,
        sign=("every", "every"),
        cost=ONE,
    ),
    _Row(
        name="/",
        takes="floats",
        gives="float",
        python=operator.truediv,
        numpy=np.divide,
        definition=operator.truediv,
        cuda={"float": "/"},
        decided="__fdiv_rn",
        derivative=("1.0 / b", "-a / b / b"),
        interval=lambda a, b: corners(a, inverse(b)),
        error=lambda a, b: multiplied(a, inverse(b)),
        terms=_quotient,
        sign=("every", "every"),
        cost=DIVISION,
    ),
    _Row(
        name="**",
        takes="floats",
        gives="float",
        python=math.pow,
        numpy=np.power,
        definition=np.power,
        cuda={"float": "powf"},
        decided="**",
        derivative=("where(b == 0.0, 0.0, b * a ** (b - 1.0))", "where(a == 0.0, 0.0, a ** b * log(a))"),
        interval=lambda a, b: _powers(a, b) if a.low > 0 else (-INF, INF),
        error=_power_error,
        terms=_power_terms,
        sign=("first", "first"),
        cost=Instructions(special=2, multiply=40, other=10),
        approximate=True,
    ),
    _Division(
        name="//",
        python=operator.floordiv,
        numpy=lambda x, n: x // np.maximum(n, 1),
        definition=lambda x, n: x // np.maximum(n, 1),
        cuda={"int": "floor_div"},
        decided="//",
        sign=("never", "first"),
    ),
    _Division(
        name="%",
        python=operator.mod,
        numpy=lambda x, n: x % np.maximum(n, 1),
        definition=lambda x, n: x - x // np.maximum(n, 1) * np.maximum(n, 1),
        cuda={"int": "floor_mod"},
        decided="%",
        sign=("never", "always"),
    ),
    _Row(
        name="neg",
        parameters=("x",),
        takes="numbers",
        python=operator.neg,
        numpy=np.negative,
        definition=operator.neg,
        cuda={"float": "-", "int": "-"},
        decided="neg",
        derivative=("-1.0",),
        interval=lambda x: (-x.high, -x.low),
        error=added,
        terms=kept,
        sign=UNKNOWN,
        cost=OTHER,
    ),
    _Row(
        name="float",
        parameters=("x",),
        takes="integers",
        gives="float",
        python=float,
        numpy=lambda x: x.astype(np.float64),
        definition=lambda x: x.astype(np.float64),
        cuda={"int": "float"},
        decided="__int2float_rn",
        derivative=(),
        interval=lambda x: (x.low, x.high),
        error=added,
        terms=kept,
        sign=("every", "every"),
        cost=OTHER,
    ),
    _Row(
        name=LONG,
        parameters=("x",),
        takes="integers",
        gives=LONG,
        python=int,
        numpy=lambda x: x.astype(np.int64),
        definition=lambda x: x.astype(np.int64),
        cuda={"int": LONG},
        decided=LONG,
        derivative=(),
        interval=lambda x: (x.low, x.high),
        error=added,
        terms=kept,
        sign=("every", "every"),
        cost=OTHER,
    ),
    _Row(
        name=LONG_BIT,
        parameters=("x", "i"),
        takes="integers",
        gives="bool",
        python=lambda x, i: 0 <= i < 64 and bool(x >> i & 1),
        numpy=lambda x, i: (i >= 0) & (i < 64) & (x >> np.clip(i, 0, 63) & 1 == 1),
        definition=lambda x, i: (i >= 0) & (i < 64) & ((x >> np.clip(i, 0, 63)) % 2 == 1),
        cuda={"int": "long_bit"},
        decided=LONG_BIT,
        derivative=(),
        interval=within(0.0, 1.0),
        error=told,
        terms=exactly,
        sign=UNKNOWN,
        cost=OTHER,
    ),
    _Row(
        name=LONG_INT,
        parameters=("x",),
        takes="integers",
        gives="int",
        python=lambda x: min(max(x, INT[0]), INT[1]),
        numpy=lambda x: np.clip(x, *INT),
        definition=lambda x: np.minimum(np.maximum(x, INT[0]), INT[1]),
        cuda={"int": "long_int"},
        decided=LONG_INT,
        derivative=(),
        interval=within(*map(float, INT)),
        error=told,
        terms=exactly,
        sign=UNKNOWN,
        cost=OTHER,
    ),
    _comparison("<", operator.lt),
    _comparison("<=", operator.le),
    _comparison(">", operator.gt),
    _comparison(">=", operator.ge),
    _comparison("==", operator.eq),
    _comparison("!=", operator.ne),
    _logic("&", np.logical_and, "&", "a", "b"),
    _logic("|", np.logical_or, "|", "a", "b"),
    _logic("~", np.logical_not, "!", "x"),
)
OPERATORS = {row.name: row for row in _ROWS}
COMPARISONS = tuple(row.name for row in _ROWS if row.gives == "bool" and row.takes == "numbers")
