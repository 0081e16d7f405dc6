"""tanh and sigmoid as one instruction, or as an exponential and a reciprocal: by a bound of what the error of the one does to the score.

Allowed is what the dtype rounds a weight by, so that the two together are at most twice what standard
attention of that dtype has; or what the other form is off by, if that is more, as of a softcap that no score comes near.
An error of the score is a relative error of its weight; where there is no softmax, the score is the weight.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from flashgen.expr.language.nodes import INDEX_NAMES, Call, Const, Name, Node, walk
from flashgen.expr.language.read import Expressions

if TYPE_CHECKING:
    from flashgen.spec import Spec

SCORES = 8.0  # s of standard normal q and k stays within this
INF = math.inf
EXPONENTIAL = 2.0**-24  # what tanh by an exponential and a reciprocal is off by, of 1 and not of itself

Off = Callable[[float], float]  # an error of tanh, for arguments up to a size


@dataclass(frozen=True)
class Form:
    """How tanh and sigmoid of a score are computed; errors are of a weight, relative."""

    tanh: float  # its relative error as one instruction
    error: float  # if they are one instruction each
    long: float  # if they are an exponential and a reciprocal
    allowed: float

    @property
    def short(self) -> bool:
        """Whether they are one instruction."""
        return self.error <= self.allowed or self.error < self.long


def form(expressions: Expressions, spec: "Spec", tanh: float) -> Form | None:
    """The form for a spec's score, where tanh in one instruction has this relative error; None if it has neither function.

    >>> from flashgen.expr.prove.lower import lower
    >>> from flashgen.spec import Spec
    >>> capped = {"head_dim": 64, "score": "softcap * tanh(s / softcap)", "params": {"softcap": 50.0}}
    >>> [form(lower(spec), spec, 2.0**-11).short for spec in (Spec(dtype=dtype, **capped) for dtype in ("bfloat16", "float16"))]
    [True, False]
    """
    if not any(isinstance(node, Call) and node.op in ("tanh", "sigmoid") for node in walk(expressions.score)):
        return None
    params = {p.name: float(p.default) for p in spec.params}
    short, long = (bound(expressions.score, params, off) for off in (relative(tanh), lambda _: EXPONENTIAL))
    least = 1.0 if spec.softmax.normalized else max(0.0, short.low, -short.high)
    error, other = (found.error / least if least else INF for found in (short, long))
    return Form(tanh=tanh, error=error, long=other, allowed=spec.element.rounding)


def relative(error: float) -> Off:
    """The error of a tanh that is off by this part of itself."""
    return lambda size: error * math.tanh(size)


@dataclass(frozen=True)
class Bound:
    """Where a number lies, and how far it is off."""

    low: float = -INF
    high: float = INF
    error: float = 0.0

    @property
    def size(self) -> float:
        return max(-self.low, self.high)


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
        case Call("where", (condition, then, other)):
            a, b = bound(then, params, off), bound(other, params, off)
            told = not any(isinstance(n, Call) and n.op in ("tanh", "sigmoid") for n in walk(condition))
            return Bound(min(a.low, b.low), max(a.high, b.high), max(a.error, b.error) if told else INF)
        case Call("tanh", (x,)):
            a = bound(x, params, off)
            return Bound(math.tanh(a.low), math.tanh(a.high), a.error + off(a.size))
        case Call("sigmoid", (x,)):
            a = bound(x, params, off)
            return Bound(_sigmoid(a.low), _sigmoid(a.high), a.error / 4 + off(a.size / 2) / 2)
        case Call(op, args) if op in _RULES:
            return _RULES[op](*(bound(x, params, off) for x in args))
    return Bound()


def _times(x: float, y: float) -> float:
    return x * y if x and y else 0.0  # 0 of what is unbounded too: a bound of errors, where an infinite number has none


def _product(a: Bound, b: Bound) -> Bound:
    corners = [_times(x, y) for x, y in product((a.low, a.high), (b.low, b.high))]
    return Bound(min(corners), max(corners), _times(a.size, b.error) + _times(b.size, a.error) + _times(a.error, b.error))


def _inverse(a: Bound) -> Bound:
    least = max(a.low, -a.high) - a.error
    if least <= 0:
        return Bound(error=INF if a.error else 0.0)
    return Bound(1 / a.high, 1 / a.low, _times(a.error, 1 / least**2))


def _monotone(f: Callable[[float], float], slope: Callable[[Bound], float]) -> Callable[[Bound], Bound]:
    """Of a function that rises, at most so steeply."""
    return lambda a: Bound(f(a.low), f(a.high), _times(slope(a), a.error))


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else INF


def _sigmoid(x: float) -> float:
    return 0.5 * math.tanh(0.5 * x) + 0.5


def _log(x: float) -> float:
    return math.log(x) if 0 < x < INF else math.copysign(INF, x - 1)


def _steepest(f: Callable[[float], float]) -> Callable[[Bound], float]:
    """The slope of a logarithm or a root, by its inverse at the least argument."""
    return lambda a: f(a.low - a.error) if a.low > a.error else INF


_RULES: Mapping[str, Callable[..., Bound]] = {
    "+": lambda a, b: Bound(a.low + b.low, a.high + b.high, a.error + b.error),
    "-": lambda a, b: Bound(a.low - b.high, a.high - b.low, a.error + b.error),
    "*": _product,
    "/": lambda a, b: _product(a, _inverse(b)),
    "neg": lambda a: Bound(-a.high, -a.low, a.error),
    "abs": lambda a: Bound(max(0.0, a.low, -a.high), a.size, a.error),
    "min": lambda a, b: Bound(min(a.low, b.low), min(a.high, b.high), max(a.error, b.error)),
    "max": lambda a, b: Bound(max(a.low, b.low), max(a.high, b.high), max(a.error, b.error)),
    "float": lambda a: a,
    "exp": _monotone(_exp, lambda a: _exp(a.high + a.error)),
    "exp2": _monotone(lambda x: _exp(x * math.log(2)), lambda a: _exp((a.high + a.error) * math.log(2))),
    "log": _monotone(_log, _steepest(lambda x: 1 / x)),
    "sqrt": _monotone(lambda x: math.sqrt(max(x, 0.0)), _steepest(lambda x: 0.5 / math.sqrt(x))),
    "floor": lambda a: Bound(a.low - 1, a.high, a.error + 1 if a.error else 0.0),
}
