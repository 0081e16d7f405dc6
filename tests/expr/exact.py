"""Expressions at one place, by Python's integers."""

import operator

from flashgen.expr.nodes import Call, Const, Load, Name

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


def exact(node, values):
    """Its value."""
    match node:
        case Const(value):
            return value
        case Name(name):
            return values[name]
        case Load(tensor, indices):
            array = values[tensor]
            return array[tuple(min(max(exact(i, values), 0), n - 1) for i, n in zip(indices, array.shape, strict=True))].item()
        case Call("where", (condition, then, other)):
            return exact(then if exact(condition, values) else other, values)
        case Call(op, args):
            return _INTEGERS[op](*(exact(arg, values) for arg in args))
    raise AssertionError(node)
