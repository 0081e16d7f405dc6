"""Other ways to write a condition: each node of it may become an equal one."""

from collections.abc import Callable, Iterator

from flashgen.expr.language.nodes import Call, Const, Node, rebuild

ALWAYS, NEVER = (Call(op, (Const(0, "int"), Const(1, "int")), "bool") for op in ("<", ">"))
OTHER_SIDE = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}
STRICT = {"<=": ("<", 1), ">=": (">", -1), "<": ("<=", -1), ">": (">=", 1)}


def rewritten(node: Node, chosen: Callable[[int], int]) -> Node:
    """An equal node. `chosen`: one of so many ways, which begin with the node as it is.

    >>> from flashgen.expr.language.nodes import Name
    >>> from flashgen.expr.language.text import show
    >>> show(rewritten(Call("<=", (Name("kv_idx", "int"), Name("q_idx", "int")), "bool"), lambda count: count - 1))
    'kv_idx < q_idx + 1'
    """
    inner = rebuild(node, lambda child: rewritten(child, chosen))
    ways = [inner, *_ways(inner)]
    return ways[chosen(len(ways))]


def _ways(node: Node) -> Iterator[Node]:
    match node:
        case Call(op, (a, b)) if op in OTHER_SIDE and a.type == "int":
            yield from _compared(op, a, b)
        case Call("&" | "|" as op, (a, b)):
            yield Call(op, (b, a), "bool")
            yield _not(Call("|" if op == "&" else "&", (_not(a), _not(b)), "bool"))
            yield Call("where", (a, b, NEVER) if op == "&" else (a, ALWAYS, b), "bool")
        case Call("%", (a, n), "int"):
            yield _int("-", a, _int("*", _int("//", a, n), n))
        case Call("+" | "*" as op, (a, b), "int"):
            yield _int(op, b, a)
        case Call("-", (a, b), "int"):
            yield _int("+", a, _int("neg", b))
            yield _int("neg", _int("-", b, a))
        case Call("abs", (a,), "int"):
            yield _int("max", a, _int("neg", a))
        case Call("min" | "max" as op, (a, b), "int"):
            yield _int(op, b, a)
            yield _int("neg", _int("max" if op == "min" else "min", _int("neg", a), _int("neg", b)))


def _compared(op: str, a: Node, b: Node) -> Iterator[Node]:
    yield Call(OTHER_SIDE[op], (b, a), "bool")
    yield _not(Call(NEGATED[op], (a, b), "bool"))
    yield Call(op, (_int("-", a, b), Const(0, "int")), "bool")
    if op == "==":
        yield Call("&", (Call("<=", (a, b), "bool"), Call(">=", (a, b), "bool")), "bool")
    if op in STRICT:
        other, step = STRICT[op]
        yield Call(other, (a, _int("+" if step > 0 else "-", b, Const(1, "int"))), "bool")


def _not(node: Node) -> Node:
    return Call("~", (node,), "bool")


def _int(op: str, *args: Node) -> Node:
    return Call(op, args, "int")
