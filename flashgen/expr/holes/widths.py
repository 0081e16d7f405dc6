"""Operations on integers in 64 bits, where 32 do not hold what they are of or what they give."""

from flashgen.expr.language.nodes import LONG, Call, Const, Load, Node

_INFIX = ("+", "-", "*", "neg")  # one long operand makes them long
_SIGNED = {"quotient": "//", "key_quotient": "//", "remainder": "%", "key_remainder": "%", "wrapped": "%"}  # the others know 32 bits only


def widened(node: Node, fits: bool) -> Node:
    """The operation, whose arguments are already as wide as they must be; `fits`: whether 32 bits hold the integer that it gives.

    >>> from flashgen.expr.holes.cuda import cuda
    >>> from flashgen.expr.language.nodes import Name
    >>> n, m = Name("n", "int"), Name("m", LONG)
    >>> cuda(widened(Call("*", (n, n), "int"), fits=False)), cuda(widened(Call("min", (m, n), "int"), fits=True))
    ('(long long)n * n', 'int(min(m, (long long)n))')
    """
    match node:
        case Load(tensor, indices, type):
            return Load(tensor, tuple(map(_narrow, indices)), type)
        case Call("__int2float_rn", args) if _any_long(args):
            return Call("__ll2float_rn", args, "float")
        case Call("bit", args) if _any_long(args):
            return Call("bit", tuple(map(_long, args)), "bool")
        case Call("where", (condition, a, b), "int") if _any_long((a, b)):
            wide = Call("where", (condition, a, b), LONG)
        case Call(op, (a, *rest), "int") if _any_long(node.args) or not fits:
            others = tuple(rest) if op in _INFIX else tuple(map(_long, rest))
            wide = Call(_SIGNED.get(op, op), (a if op in _INFIX and _any_long(others) else _long(a), *others), LONG)
        case _:
            return node
    return _narrow(wide) if fits else wide


def _any_long(nodes: tuple[Node, ...]) -> bool:
    return any(node.type == LONG for node in nodes)


def _long(node: Node) -> Node:
    match node:
        case Const(value):
            return Const(value, LONG)
    return node if node.type == LONG else Call(LONG, (node,), LONG)


def _narrow(node: Node) -> Node:
    return Call("int", (node,), "int") if node.type == LONG else node
