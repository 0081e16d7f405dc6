"""Constants folded, in float32 and in exact integers; what leaves the range of float32, or becomes 0 there, is left as it is."""

import math

from flashgen.dtypes import float32
from flashgen.expr.language.functions import row
from flashgen.expr.language.nodes import Call, Const, Node, Type, rebuild

INT32 = 2**31 - 1
TRUE, FALSE = Const(True, "bool"), Const(False, "bool")


def fold(node: Node) -> Node:
    """The node with constants evaluated and neutral elements dropped.

    >>> from flashgen.expr.language.nodes import Name
    >>> fold(Call("+", (Name("q_len", "int"), Const(0, "int")), "int"))
    Name(name='q_len', type='int')
    """
    node = rebuild(node, fold)
    return call(node.op, *node.args) if isinstance(node, Call) else node


def call(op: str, *args: Node) -> Node:
    """The folded call of `op` on folded arguments.

    0 * x stays for a float x, which may be infinite; x + 0 and x * 1 go.
    """
    node = Call(op, args, _type(op, args))
    if op in ("&", "|", "~", "where"):
        return _fold_logic(node)
    if all(isinstance(a, Const) for a in args):
        return _evaluate(node, [a.value for a in args if isinstance(a, Const)])
    return _fold_neutral(node)


def as_float(node: Node) -> Node:
    """An integer as a float; a number of the text at once."""
    if node.type == "float":
        return node
    return Const(float32(node.value), "float") if isinstance(node, Const) else Call("float", (node,), "float")


def join(*nodes: Node) -> tuple[Node, ...]:
    """The nodes as one type: all floats if one is."""
    return tuple(map(as_float, nodes)) if any(n.type == "float" for n in nodes) else nodes


def _type(op: str, args: tuple[Node, ...]) -> Type:
    found = row(op)
    return args[-1].type if found is None or found.gives == "same" else found.gives


def _evaluate(node: Call, values: list[int | float | bool]) -> Node:
    found = row(node.op)
    assert found, node.op
    try:
        value = found.python(*values)
    except (ArithmeticError, ValueError):
        return node  # infinite or undefined: left to the arithmetic of whoever runs it
    if node.type != "float":
        return Const(value, node.type) if abs(value) <= INT32 else node
    rounded = float32(value)  # of two numbers of float32, + - * / sqrt rounded twice are rounded once
    lost = not rounded and (value != 0 or found.sign[0] == "always")
    return Const(rounded, "float") if math.isfinite(rounded) and not lost else node


def _fold_logic(node: Call) -> Node:
    match node.op, node.args:
        case "~", (Const(value),):
            return Const(not value, "bool")
        case "~", (Call("~", (inner,)),):
            return inner
        case "where", (Const(condition), then, other):
            return then if condition else other
        case "where", (_, then, other) if then == other:
            return then
        case "&" | "|", (Const(value), other) | (other, Const(value)):
            decisive = node.op == "|"
            return Const(decisive, "bool") if value == decisive else other
        case "&" | "|", (left, right) if left == right:
            return left
    return node


def _fold_neutral(node: Call) -> Node:
    match node.op, node.args:
        case "+", (Const(0), x) | (x, Const(0)):
            return x
        case "-" | "//", (x, Const(value)) if value == (0 if node.op == "-" else 1):
            return x
        case "-", (Const(0), x) if x.type == "int":
            return call("neg", x)
        case "neg", (Call("-", (a, b)),) if a.type == "int":
            return call("-", b, a)
        case "*" | "/" | "**", (x, Const(1)):
            return x
        case "*", (Const(1), x):
            return x
        case "*", (Const(0), x) | (x, Const(0)) if x.type == "int":
            return Const(0, "int")
        case "%", (_, Const(1)):
            return Const(0, "int")
        case "neg", (Call("neg", (inner,)),):
            return inner
        case "min" | "max", (left, right) if left == right:
            return left
        case "<" | ">" | "!=" | "<=" | ">=" | "==", (left, right) if left == right and left.type == "int":
            return Const(node.op in ("<=", ">=", "=="), "bool")
    return node
