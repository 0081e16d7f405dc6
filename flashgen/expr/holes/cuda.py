"""Nodes as CUDA text. By now a name is what the text calls it: `p.q_len`, `row.end`, `column`."""

from flashgen.expr.holes.machine import OPERATIONS
from flashgen.expr.language.functions import row
from flashgen.expr.language.nodes import Call, Const, Load, Name, Node

_LEVELS = {
    "where": 1,
    "|": 2,
    "&": 3,
    "==": 4,
    "!=": 4,
    "<": 5,
    "<=": 5,
    ">": 5,
    ">=": 5,
    "+": 6,
    "-": 6,
    "*": 7,
    "/": 7,
    "neg": 8,
    "~": 8,
    "long long": 8,
}
_ATOM = 9


def cuda(node: Node) -> str:
    """The expression, with the parentheses that C++ needs.

    >>> x = Name("row.end", "int")
    >>> cuda(Call("&", (Call("<", (Name("column", "int"), x), "bool"), Name("seen", "bool")), "bool"))
    '(column < row.end) & seen'
    """
    match node:
        case Const(value, type):
            return f"{value}LL" if type == "long long" else literal(value)
        case Name(name):
            return name
        case Load(tensor, indices):
            return f"{tensor}({', '.join(map(cuda, indices))})"
        case Call("neg" | "~" as op, (x,)):
            return ("-" if op == "neg" else "!") + _inside(x, _ATOM)
        case Call("long long", (x,)):
            return f"(long long){_inside(x, _ATOM)}"
        case Call("where", (condition, then, other)):
            return f"{_inside(condition, 2)} ? {_inside(then, 2)} : {_inside(other, 1)}"
        case Call(op, (left, right)) if op in _LEVELS:
            level = _LEVELS[op]
            if op in ("&", "|"):  # not && and ||: the compiler makes branches of them, and spills
                return f"{_operand(left, op)} {op} {_operand(right, op)}"
            return f"{_inside(left, level)} {op} {_inside(right, level + 1)}"
        case Call(op, (x, Name(divisor, "Divisor"))):
            return f"{divisor}.{_called(op, x)}({cuda(x)})"
        case Call(op, args):
            return f"{_called(op, args[-1])}({', '.join(map(cuda, args))})"
    raise AssertionError(node)


def _called(op: str, of: Node) -> str:
    """The function of the text, for an operation of such an operand."""
    if (found := row(op)) and (name := found.cuda.get("float" if of.type == "float" else "int")):
        return name
    return OPERATIONS[op].cuda if op in OPERATIONS else op


def literal(value: int | float | bool) -> str:
    """A constant; a float as the shortest text of the nearest float32."""
    import numpy as np

    if isinstance(value, float):
        return f"{np.float32(value)!s}f"
    return str(value).lower()


def _inside(node: Node, level: int) -> str:
    return f"({cuda(node)})" if _level(node) < level else cuda(node)


def _operand(node: Node, op: str) -> str:
    """An operand of & or |: in parentheses, as in the language, unless it is a chain of the same."""
    return cuda(node) if isinstance(node, Call) and node.op == op else _inside(node, _LEVELS["neg"])


def _level(node: Node) -> int:
    match node:
        case Call(op):
            return _LEVELS.get(op, _ATOM)
        case Const(value) if not isinstance(value, bool) and value < 0:
            return _LEVELS["neg"]
    return _ATOM
