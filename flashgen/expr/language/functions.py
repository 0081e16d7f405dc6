"""The functions of the language, a row each: nothing else lists them."""

import math
import re
from functools import partial
from typing import Any

import numpy as np

from flashgen.expr.language.bound import INF, grown, rising, spread, steep, steepest, times, within
from flashgen.expr.language.choices import CHOICES
from flashgen.expr.language.function import Defined, Function, Machine, Short, plain
from flashgen.expr.language.instructions import Instructions
from flashgen.expr.language.operators import OPERATORS, UNKNOWN

LOG2_E, LN_2 = 1 / math.log(2.0), math.log(2.0)

_Real = partial(Function, parameters=("a",), takes="floats", gives="float", library=plain, short=())
_COST = Instructions(special=1, multiply=10)  # an instruction of the special function unit, and what makes it as good as float32


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else INF


def _log(x: float) -> float:
    return math.log(x) if 0 < x < INF else math.copysign(INF, x - 1)


def _sigmoid(x: float) -> float:
    return 0.5 * math.tanh(0.5 * x) + 0.5


def _logistic(m: Machine, power: Any) -> Any:
    """1 / (1 + e^power); 0 where that is infinite."""
    return m.instruction("inverse", 1.0 + m.instruction("exp2", LOG2_E * power))


def _erf(x: Any) -> Any:
    """NumPy has none."""
    return np.frompyfunc(math.erf, 1, 1)(x).astype(x.dtype) if np.ndim(x) else np.asarray(x).dtype.type(math.erf(x))


_Wave = partial(
    _Real,
    fast=plain,
    interval=within(-1.0, 1.0),
    error=steep(1.0),
    terms=grown(1.0),
    sign=UNKNOWN,
    cost=Instructions(multiply=16, other=8),
    approximate=True,
)

_ROWS: tuple[Function | Defined, ...] = (
    _Real(
        name="exp",
        python=math.exp,
        numpy=np.exp,
        definition=np.exp,
        cuda={"float": "expf"},
        decided="exp",
        fast=lambda m, x: m.instruction("exp2", LOG2_E * x),
        derivative=("exp(a)",),
        interval=rising(_exp),
        error=lambda x: times(_exp(x.high + x.error), x.error),
        terms=spread(np.exp),
        sign=("always", "always"),
        cost=_COST,
        approximate=True,
    ),
    _Real(
        name="exp2",
        python=lambda x: 2.0**x,
        numpy=np.exp2,
        definition=np.exp2,
        cuda={"float": "exp2f"},
        decided="exp2",
        fast=lambda m, x: m.instruction("exp2", x),
        derivative=("0.6931471805599453 * exp2(a)",),
        interval=rising(lambda x: _exp(x * LN_2)),
        error=lambda x: times(_exp((x.high + x.error) * LN_2), x.error),
        terms=spread(np.exp2),
        sign=("always", "always"),
        cost=_COST,
        approximate=True,
    ),
    _Real(
        name="log",
        python=math.log,
        numpy=np.log,
        definition=np.log,
        cuda={"float": "logf"},
        decided="log",
        fast=lambda m, x: LN_2 * m.instruction("log2", x),
        derivative=("1.0 / a",),
        interval=rising(_log),
        error=steepest(lambda x: 1 / x),
        terms=spread(np.log),
        sign=UNKNOWN,
        cost=_COST,
        approximate=True,
    ),
    _Real(
        name="tanh",
        python=math.tanh,
        numpy=np.tanh,
        definition=np.tanh,
        cuda={"float": "tanhf"},
        decided="tanh",
        fast=lambda m, x: m.fma(-2.0, _logistic(m, 2.0 * x), 1.0),
        short=(Short(lambda m, x: m.instruction("tanh", x), lambda off, x: off(x.size)),),
        derivative=("1.0 - tanh(a) * tanh(a)",),
        interval=rising(math.tanh),
        error=steep(1.0),
        terms=spread(np.tanh),
        sign=UNKNOWN,
        cost=_COST,
        approximate=True,
    ),
    _Real(
        name="sigmoid",
        python=lambda x: 1.0 / (1.0 + math.exp(-x)),
        numpy=lambda x: 1 / (1 + np.exp(-x)),
        definition=lambda x: 1 / (1 + np.exp(-x)),
        cuda={"float": "1 / (1 + expf(-x))"},
        decided="sigmoid",
        library=lambda m, x: 1.0 / (1.0 + m.library("exp", -x)),
        fast=lambda m, x: _logistic(m, -x),
        short=(Short(lambda m, x: 0.5 * m.instruction("tanh", 0.5 * x) + 0.5, lambda off, x: off(x.size / 2) / 2),),
        derivative=("sigmoid(a) * (1.0 - sigmoid(a))",),
        interval=rising(_sigmoid),
        error=steep(0.25),
        terms=spread(lambda x: 1 / (1 + np.exp(-x))),
        sign=("always", "always"),
        cost=_COST,
        approximate=True,
    ),
    _Real(
        name="sqrt",
        python=math.sqrt,
        numpy=np.sqrt,
        definition=np.sqrt,
        cuda={"float": "sqrtf"},
        decided="__fsqrt_rn",
        fast=lambda m, x: m.instruction("sqrt", x),
        derivative=("0.5 / sqrt(a)",),
        interval=rising(lambda x: math.sqrt(max(x, 0.0))),
        error=steepest(lambda x: 0.5 / math.sqrt(x)),
        terms=spread(lambda x: np.sqrt(np.maximum(x, 0.0))),
        sign=("every", "always"),
        cost=_COST,
    ),
    _Real(
        name="erf",
        python=math.erf,
        numpy=_erf,
        definition=_erf,
        cuda={"float": "erff"},
        decided="erf",
        fast=plain,
        derivative=("1.1283791670955126 * exp(-a * a)",),
        interval=rising(math.erf),
        error=steep(2 / math.sqrt(math.pi)),
        terms=spread(_erf),
        sign=UNKNOWN,
        cost=Instructions(special=1, multiply=20, other=4),
        approximate=True,
    ),
    _Wave(
        name="sin",
        python=math.sin,
        numpy=np.sin,
        definition=np.sin,
        cuda={"float": "sinf"},
        decided="sin",
        derivative=("cos(a)",),
    ),
    _Wave(
        name="cos",
        python=math.cos,
        numpy=np.cos,
        definition=np.cos,
        cuda={"float": "cosf"},
        decided="cos",
        derivative=("-sin(a)",),
    ),
    Defined("softplus", ("a",), "max(a, 0.0) + log(1.0 + exp(-abs(a)))"),
    Defined("silu", ("a",), "a * sigmoid(a)"),
    Defined("gelu", ("a",), "0.5 * a * (1.0 + erf(0.7071067811865476 * a))"),
)
FUNCTIONS: dict[str, Function | Defined] = {each.name: each for each in (*_ROWS, *CHOICES)}


def _shortens(name: str) -> bool:
    match FUNCTIONS.get(name):
        case Defined(text=text):
            return any(map(_shortens, re.findall(r"[a-z]\w*", text)))
        case Function(short=short):
            return bool(short)
    return False


SHORTENED = frozenset(filter(_shortens, FUNCTIONS))  # those that may be one instruction, by how large their arguments are


def row(op: str) -> Function | None:
    """The row of an operator or a function; None: it is an operation of kernels alone."""
    found = OPERATORS.get(op) or FUNCTIONS.get(op)
    return found if isinstance(found, Function) else None
