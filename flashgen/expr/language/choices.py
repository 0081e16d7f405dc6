"""Functions that choose or count: a row each, of floats or of integers."""

import math
from functools import partial
from typing import Any

import numpy as np

from flashgen.expr.language.bound import INF, exactly, greatest, kept, larger, stepped, told, within
from flashgen.expr.language.function import Function, plain
from flashgen.expr.language.operators import INT, OTHER, UNKNOWN

_Pair = partial(Function, parameters=("a", "b"), takes="numbers", gives="same", library=plain, fast=plain, short=())


def _toward_zero(x: Any) -> Any:
    """A 32-bit integer: beyond them the nearest, and 0 for NaN."""
    return np.nan_to_num(np.clip(np.trunc(np.asarray(x, np.float64)), *INT)).astype(np.int64)


CHOICES = (
    _Pair(
        name="floor",
        parameters=("a",),
        takes="floats",
        gives="float",
        python=lambda x: float(math.floor(x)),
        numpy=np.floor,
        definition=np.floor,
        cuda={"float": "floorf"},
        decided="floor",
        derivative=("0.0",),
        interval=lambda x: (x.low - 1, x.high),
        error=stepped,
        terms=kept,
        sign=("never", "every"),
        cost=OTHER,
        decides=True,
    ),
    _Pair(
        name="round",
        parameters=("a",),
        takes="floats",
        gives="float",
        python=lambda x: float(round(x)),  # half to even
        numpy=np.rint,
        definition=np.rint,
        cuda={"float": "rintf"},
        decided="round",
        derivative=("0.0",),
        interval=lambda x: (x.low - 0.5, x.high + 0.5),
        error=stepped,
        terms=kept,
        sign=("never", "every"),
        cost=OTHER,
        decides=True,
    ),
    _Pair(
        name="int",
        parameters=("a",),
        takes="floats",
        gives="int",
        python=lambda x: min(max(int(x), INT[0]), INT[1]),
        numpy=_toward_zero,
        definition=_toward_zero,
        cuda={"float": "__float2int_rz"},
        decided="int",
        derivative=("0.0",),
        interval=lambda x: (x.low - 1, x.high + 1),
        error=stepped,
        terms=kept,
        sign=("never", "every"),
        cost=OTHER,
        decides=True,
    ),
    _Pair(
        name="abs",
        parameters=("a",),
        python=abs,
        numpy=np.abs,
        definition=np.abs,
        cuda={"float": "fabsf", "int": "abs"},
        decided="abs",
        derivative=("where(a < 0.0, -1.0, where(a > 0.0, 1.0, 0.0))",),
        interval=lambda x: (max(0.0, x.low, -x.high), x.size),
        error=greatest,
        terms=kept,
        sign=("never", "always"),
        cost=OTHER,
    ),
    _Pair(
        name="min",
        python=min,
        numpy=np.minimum,
        definition=np.minimum,  # NaN if one is
        cuda={"float": "ptx::minimum", "int": "min"},
        decided="min",
        derivative=("where(a > b, 0.0, where(a < b, 1.0, 0.5))", "where(a < b, 0.0, where(a > b, 1.0, 0.5))"),
        interval=lambda a, b: (min(a.low, b.low), min(a.high, b.high)),
        error=greatest,
        terms=larger,
        sign=("every", "every"),
        cost=OTHER,
    ),
    _Pair(
        name="max",
        python=max,
        numpy=np.maximum,
        definition=np.maximum,
        cuda={"float": "ptx::maximum", "int": "max"},
        decided="max",
        derivative=("where(a < b, 0.0, where(a > b, 1.0, 0.5))", "where(a > b, 0.0, where(a < b, 1.0, 0.5))"),
        interval=lambda a, b: (max(a.low, b.low), max(a.high, b.high)),
        error=greatest,
        terms=larger,
        sign=("some", "some"),
        cost=OTHER,
    ),
    _Pair(
        name="where",
        parameters=("condition", "a", "b"),
        takes="choice",
        python=lambda condition, a, b: a if condition else b,
        numpy=np.where,
        definition=np.where,
        cuda={"float": "?:", "int": "?:", "bool": "?:"},
        decided="where",
        derivative=("where(condition, 1.0, 0.0)", "where(condition, 0.0, 1.0)"),
        interval=lambda _, a, b: (min(a.low, b.low), max(a.high, b.high)),
        error=lambda condition, a, b: INF if condition.error else max(a.error, b.error),
        terms=lambda _, condition, a, b: np.where(condition.value, a.size, b.size),
        sign=("every", "every"),
        cost=OTHER,
    ),
    _Pair(
        name="bit",
        takes="integers",
        gives="bool",
        python=lambda x, i: 0 <= i < 32 and bool(x >> i & 1),
        numpy=lambda x, i: (i >= 0) & (i < 32) & (x >> np.clip(i, 0, 31) & 1 == 1),
        definition=lambda x, i: (i >= 0) & (i < 32) & (x // 2 ** np.clip(i, 0, 31) % 2 == 1),
        cuda={"int": "bit"},
        decided="bit",
        derivative=(),
        interval=within(0.0, 1.0),
        error=told,
        terms=exactly,
        sign=UNKNOWN,
        cost=OTHER,
    ),
)
