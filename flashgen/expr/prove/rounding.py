"""tanh and sigmoid as one instruction, as an exponential and a reciprocal, or by CUDA's functions: by what an error does to the score.

Allowed is what the dtype rounds a weight by, so that the two together are at most twice what standard attention of that dtype has. The
first way within it is taken; CUDA's functions, where neither of the others is, as of a softcap that no score comes near.
An error of the score is a relative error of its weight; where there is no softmax, the score is the weight.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from flashgen.expr.language.bound import INF, Bound
from flashgen.expr.language.function import Function, Off
from flashgen.expr.language.functions import row
from flashgen.expr.language.nodes import INDEX_NAMES, Call, Const, Name, Node, Summation, walk
from flashgen.expr.language.read import Expressions

if TYPE_CHECKING:
    from flashgen.spec import Spec

SCORES = 8.0  # s of standard normal q and k stays within this
EXPONENTIAL = 2.0**-24  # what tanh by an exponential and a reciprocal is off by, of 1 and not of itself
TF32 = 2.0**-11  # what 11 bits round a weight by
FURTHER = 16.0  # times what is allowed: as far off as a call may be whose params are not the defaults that a way was chosen for


@dataclass(frozen=True)
class Rounding:
    """The way in which tanh and sigmoid of a score are computed; errors are of a weight, relative."""

    tanh: float  # its relative error as one instruction
    error: float  # if they are one instruction each
    long: float  # if they are an exponential and a reciprocal
    allowed: float

    @property
    def way(self) -> Literal["short", "fast", "library"]:
        """The cell of a function's row that computes it: one instruction, the special function unit, or CUDA's functions."""
        if self.error <= self.allowed:
            return "short"
        return "fast" if self.long <= self.allowed or self.long == INF else "library"

    def serves(self, other: "Rounding") -> bool:
        """True if this way is right enough for params of which `other` was found."""
        off = {"short": other.error, "fast": other.long, "library": 0.0}[self.way]
        return off <= FURTHER * self.allowed or self.long == INF


def rounding(expressions: Expressions, spec: "Spec", tanh: float, **params: float) -> Rounding | None:
    """The way for a spec's score, where tanh in one instruction has this relative error; None if it has neither function, or is exact.

    `params`: their values, if they are not the defaults.

    >>> from flashgen.expr.prove.lower import lower
    >>> from flashgen.spec import Spec
    >>> capped = {"head_dim": 64, "score": "softcap * tanh(s / softcap)", "params": {"softcap": 50.0}}
    >>> [rounding(lower(spec), spec, 2.0**-11).way for spec in (Spec(dtype=dtype, **capped) for dtype in ("bfloat16", "float16"))]
    ['short', 'fast']
    """
    if spec.exact or not any(isinstance(node, Call) and (function := row(node.op)) and function.short for node in walk(expressions.score)):
        return None
    params = {p.name: float(p.default) for p in spec.params} | params
    short, long = (bound(expressions.score, params, off) for off in (relative(tanh), lambda _: EXPONENTIAL))
    least = 1.0 if spec.softmax.normalized else max(0.0, short.low, -short.high)
    error, other = (found.error / least if least else INF for found in (short, long))
    return Rounding(tanh=tanh, error=error, long=other, allowed=spec.element.rounding if spec.dtype != "float32" else TF32)


def relative(error: float) -> Off:
    """The error of a tanh that is off by this part of itself."""
    return lambda size: error * math.tanh(size)


def bound(node: Node, params: Mapping[str, float], off: Off) -> Bound:
    """The bound of a number of the language: `params` as given, s within SCORES, tensors anywhere."""
    match node:
        case Const(value):
            return Bound(value, value)
        case Name("s"):
            return Bound(-SCORES, SCORES)
        case Name(name) if name in params:
            return Bound(params[name], params[name])
        case Name(name) if name in INDEX_NAMES:
            return Bound(0.0)
        case Summation():
            return bound(node.unrolled, params, off)
        case Call(op, args):
            return _of_call(row(op), [bound(x, params, off) for x in args], off)
    return Bound()


def _of_call(row: Function | None, args: list[Bound], off: Off) -> Bound:
    if row is None:  # of which nothing is known
        return Bound(error=INF)
    low, high = row.interval(*args)
    return Bound(low, high, row.error(*args) + sum(short.error(off, args[0]) for short in row.short))
