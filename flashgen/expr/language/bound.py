"""Bounds of a number and of its error: the cells of a function's row give those of its result from those of its arguments."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

INF = math.inf
UNITS = 2.0**-21  # eight roundings of float32
Interval = tuple[float, float]


@dataclass(frozen=True)
class Bound:
    """The interval in which a number lies, and its error."""

    low: float = -INF
    high: float = INF
    error: float = 0.0

    @property
    def size(self) -> float:
        """The greatest magnitude of the interval."""
        return max(-self.low, self.high)


@dataclass(frozen=True)
class Term:
    """Values, and the magnitudes of the terms that each is a sum of: float32 knows it to some units of these."""

    value: Any
    size: Any

    @property
    def low(self) -> Any:
        """The least value that the number may have within its error."""
        return self.value - UNITS * self.size

    @property
    def high(self) -> Any:
        """The greatest value that the number may have within its error."""
        return self.value + UNITS * self.size


# Intervals


def anywhere(*_: Bound) -> Interval:
    """The interval of a result of which nothing is known."""
    return -INF, INF


def rising(f: Callable[[float], float]) -> Callable[[Bound], Interval]:
    """The interval of a function that rises."""
    return lambda x: (f(x.low), f(x.high))


def within(low: float, high: float) -> Callable[..., Interval]:
    """The interval of a function whose results lie from `low` to `high`."""
    return lambda *_: (low, high)


def corners(a: Bound, b: Bound) -> Interval:
    """The interval of a product."""
    found = [times(x, y) for x, y in product((a.low, a.high), (b.low, b.high))]
    return min(found), max(found)


def inverse(a: Bound) -> Bound:
    """1 / a."""
    least = max(a.low, -a.high) - a.error
    if least <= 0:
        return Bound(error=INF if a.error else 0.0)
    return Bound(1 / a.high, 1 / a.low, times(a.error, 1 / least**2))


# Errors


def times(x: float, y: float) -> float:
    """A product of bounds of errors, in which 0 times infinity is 0."""
    return x * y if x and y else 0.0  # 0 of what is unbounded too: a bound of errors, where an infinite number has none


def added(*args: Bound) -> float:
    """The error of a sum: that of all arguments together."""
    return sum(x.error for x in args)


def greatest(*args: Bound) -> float:
    """The error of a function that gives one of its arguments."""
    return max(x.error for x in args)


def multiplied(a: Bound, b: Bound) -> float:
    """The error of a product."""
    return times(a.size, b.error) + times(b.size, a.error) + times(a.error, b.error)


def told(*args: Bound) -> float:
    """No error where the arguments have none, and any where they have one."""
    return INF if any(x.error for x in args) else 0.0


def stepped(x: Bound) -> float:
    """The error of a function that rounds to whole numbers."""
    return x.error + 1 if x.error else 0.0


def steep(slope: float) -> Callable[[Bound], float]:
    """The error of a function that is nowhere steeper."""
    return lambda x: times(slope, x.error)


def steepest(slope: Callable[[float], float]) -> Callable[[Bound], float]:
    """The error of a logarithm or a root, by its slope at the least argument."""
    return lambda x: times(slope(x.low - x.error) if x.low > x.error else INF, x.error)


# Terms


def exactly(value: Any, *_: Term) -> Any:
    """The terms of a result that has no others than itself."""
    return np.abs(value)


def kept(_: Any, x: Term) -> Any:
    """The terms of a function that keeps those of its argument."""
    return x.size


def summed(_: Any, *args: Term) -> Any:
    """The terms of a sum: those of all arguments together."""
    return sum(x.size for x in args)


def larger(_: Any, a: Term, b: Term) -> Any:
    """The terms of a function that gives one of two arguments."""
    return np.maximum(a.size, b.size)


def spread(f: Callable[[Any], Any]) -> Callable[[Any, Term], Any]:
    """The terms of a function that rises, by its values at both ends of what is known of the argument."""
    return lambda value, x: np.abs(value) + np.maximum(np.abs(f(x.low) - value), np.abs(f(x.high) - value)) / UNITS


def grown(slope: float) -> Callable[[Any, Term], Any]:
    """The terms of a function that is nowhere steeper."""
    return lambda value, x: np.abs(value) + slope * x.size
