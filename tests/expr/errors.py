"""Bounds how far float32 may stray from an expression's value: a bound carried beside the value, rule by rule."""

import numpy as np

from flashgen.expr.language.functions import row
from flashgen.expr.language.nodes import Call, Const, Load, Name
from flashgen.expr.meaning.evaluate import evaluate

ROUNDING = 2.0**-20  # sixteen roundings an operation: the order of sums and products is the emitter's


def bounded(node, values):
    """Value and bound of a float, in float64; an infinite bound where a choice is too close to call."""
    with np.errstate(all="ignore"):
        value, bound = _float(node, values)
    return value, np.where(np.isnan(bound), np.inf, bound)


def _float(node, values):
    match node:
        case Const() | Name() | Load():
            value = np.asarray(evaluate(node, values), np.float64)
            return value, ROUNDING * np.abs(value)
        case Call("float", (x,)):
            value = np.asarray(evaluate(x, values), np.float64)
            return value, ROUNDING * np.abs(value)
        case Call("where", (condition, a, b)):
            (c, sure), (x, dx), (y, dy) = _bool(condition, values), _float(a, values), _float(b, values)
            return np.where(c, x, y), np.where(sure, np.where(c, dx, dy), np.inf)
        case Call(op, args):
            xs, ds = zip(*(_float(a, values) for a in args), strict=True)
            value = row(op).numpy(*xs)
            return value, _RULES[op](*xs, *ds) + ROUNDING * (np.abs(value) + 1e-6)
    raise AssertionError(node)


def _bool(node, values):
    """The condition, and where rounding cannot change it."""
    match node:
        case Call("where", (c, a, b)):
            (c, c_sure), (x, x_sure), (y, y_sure) = (_bool(n, values) for n in (c, a, b))
            return np.where(c, x, y), c_sure & x_sure & y_sure
        case Call("&" | "|" | "~" as op, args):
            xs, sures = zip(*(_bool(a, values) for a in args), strict=True)
            return row(op).numpy(*xs), np.logical_and.reduce(np.broadcast_arrays(*sures))
        case Call(op, (a, b)) if a.type == "float":
            (x, dx), (y, dy) = _float(a, values), _float(b, values)
            distance = np.abs(x - y)
            return row(op).numpy(x, y), (distance > dx + dy) | np.isnan(distance) | (np.isinf(distance) & np.isfinite(y))
    return np.asarray(evaluate(node, values)), np.asarray(True)


def _stepped(step):
    return lambda x, d: np.where(step(x - d) == step(x + d), 0.0, 1.0 + 2 * d)


def _power(x, y, dx, dy):
    """By the ends of what its arguments may be: it rises or falls along each."""
    ends = [np.power(np.maximum(x + a * dx, 0.0), y + b * dy) for a in (-1, 1) for b in (-1, 1)]
    return np.maximum.reduce(ends) - np.minimum.reduce(ends)


_RULES = {
    "+": lambda x, y, dx, dy: dx + dy + ROUNDING * (np.abs(x) + np.abs(y)),
    "-": lambda x, y, dx, dy: dx + dy + ROUNDING * (np.abs(x) + np.abs(y)),
    "*": lambda x, y, dx, dy: np.abs(x) * dy + np.abs(y) * dx + dx * dy,
    "/": lambda x, y, dx, dy: (dx + np.abs(x / y) * dy) / np.maximum(np.abs(y) - dy, 0.0),
    "min": lambda _x, _y, dx, dy: np.maximum(dx, dy),
    "max": lambda _x, _y, dx, dy: np.maximum(dx, dy),
    "neg": lambda _, d: d,
    "abs": lambda _, d: d,
    "tanh": lambda _, d: d,
    "sigmoid": lambda _, d: d,
    "exp": lambda x, d: np.exp(x) * np.expm1(d),
    "exp2": lambda x, d: np.exp2(x) * np.expm1(d),
    "log": lambda x, d: d / np.maximum(np.abs(x) - d, 0.0),
    "sqrt": lambda x, d: d / np.sqrt(np.maximum(np.abs(x) - d, 0.0)),
    "floor": _stepped(np.floor),
    "round": _stepped(np.rint),
    "erf": lambda _, d: 2 * d,
    "sin": lambda _, d: d,
    "cos": lambda _, d: d,
    "**": _power,
}
