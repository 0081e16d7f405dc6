"""Nodes as text of the language: `parse(show(node))` is the node again."""

from flashgen.dtypes import float32_text
from flashgen.expr.language.nodes import Call, Const, Load, Name, Node, Summation

_LEVELS = {"|": 2, "&": 3, "+": 4, "-": 4, "*": 5, "/": 5, "//": 5, "%": 5, "neg": 6, "~": 6, "**": 7}
_COMPARISON, _ATOM = 1, 8


def show(node: Node) -> str:
    """The node as its author would write it.

    >>> show(Call("*", (Name("n", "int"), Call("+", (Name("h", "int"), Const(1, "int")), "int")), "int"))
    'n * (h + 1)'
    """
    match node:
        case Const(float(value)):
            return float32_text(value)
        case Const(value):
            return str(value)
        case Name(name):
            return name
        case Load(tensor, indices):
            return f"{tensor}[{', '.join(map(show, indices))}]"
        case Summation(index, term):
            return f"sum({index.name}, {index.count}, {show(term)})"
        case Call("float" | "long long", (x,)):
            return show(x)
        case Call("long bit" | "long int" as op, args):
            return f"{op[5:]}({', '.join(map(show, args))})"
        case Call("neg" | "~" as op, (x,)):
            return ("-" if op == "neg" else "~") + _inside(x, _ATOM)
        case Call(op, args) if op[0].isalpha():
            return f"{op}({', '.join(map(show, args))})"
        case Call("**", (base, exponent)):
            return f"{_inside(base, _ATOM)} ** {_inside(exponent, _LEVELS['neg'])}"
        case Call(op, (left, right)):
            level = _level(node)
            return f"{_inside(left, level + (level == _COMPARISON))} {op} {_inside(right, level + 1)}"
    raise AssertionError(node)


def _inside(node: Node, level: int) -> str:
    return f"({show(node)})" if _level(node) < level else show(node)


def _level(node: Node) -> int:
    match node:
        case Call("float" | "long long", (x,)):
            return _level(x)
        case Call(op) if not op[0].isalpha() or op == "neg":
            return _LEVELS.get(op, _COMPARISON)
        case Const(value) if not isinstance(value, bool) and value < 0:
            return _LEVELS["neg"]
    return _ATOM
