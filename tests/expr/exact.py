"""Expressions at one place, by Python's integers and NumPy's float32, operation by operation."""

import operator

import numpy as np

from flashgen.expr.language.nodes import Call, Const, Load, Name

_INTEGERS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "neg": operator.neg,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "abs": abs,
    "min": min,
    "max": max,
    "bit": lambda x, i: 0 <= i < 32 and x >> i & 1 == 1,
    "&": operator.and_,
    "|": operator.or_,
    "~": operator.not_,
}


def _int(x):
    return 0 if np.isnan(x) else int(min(max(np.float64(x), -(2.0**31)), 2.0**31 - 1))


_FLOATS = {
    **_INTEGERS,
    "/": operator.truediv,
    "min": np.minimum,
    "max": np.maximum,
    "floor": np.floor,
    "round": np.rint,
    "int": _int,
    "sqrt": np.sqrt,
}


def exact(node, values):
    """Its value: an int, a bool or a float32."""
    match node:
        case Const(value, type):
            return np.float32(value) if type == "float" else value
        case Name(name, type):
            return np.float32(values[name]) if type == "float" else values[name]
        case Load(tensor, indices, type):
            array = values[tensor]
            value = array[tuple(min(max(exact(i, values), 0), n - 1) for i, n in zip(indices, array.shape, strict=True))]
            return value if type == "float" else value.item()
        case Call("where", (condition, then, other)):
            return exact(then if exact(condition, values) else other, values)
        case Call("float", (x,)):
            return np.int64(exact(x, values)).astype(np.float32)
        case Call(op, args):
            operations = _FLOATS if args[-1].type == "float" else _INTEGERS
            return operations[op](*(exact(arg, values) for arg in args))
    raise AssertionError(node)
