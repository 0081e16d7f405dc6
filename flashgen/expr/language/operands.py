"""Operands that are read in a way of their own: the arguments of named masks, powers, numbers of int64."""

import ast
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from flashgen.expr.language.fold import as_float, join
from flashgen.expr.language.function import Function
from flashgen.expr.language.masks import MASKS
from flashgen.expr.language.nodes import LONG, Call, Const, Node, walk
from flashgen.expr.language.operators import LONG_BIT, LONG_INT
from flashgen.expr.language.scope import EXAMPLES, LONG_HINT, MAX_POWER

if TYPE_CHECKING:
    from flashgen.expr.language.parse import Parser


def argument(parser: "Parser", tree: ast.expr, mask: str, parameter: str) -> Node:
    """The integer that a named mask takes, with a claim of how small it may be. Raises SpecError."""
    node, least = parser.typed(tree, "int", f"{parameter} of {mask}"), MASKS[mask].least
    if least == 1:
        parser.claim("positive", tree, node, f"{parameter} of {mask}")
    elif least == -1:
        limit = f"{parameter} of {mask} must be a number of keys, or -1 for no limit"
        parser.claim("holds", tree, Call(">=", (node, Const(-1, "int")), "bool"), limit)
    return node


def tensor(parser: "Parser", tree: ast.expr, user: str) -> str:
    """The name of the tensor that a named mask takes. Raises SpecError."""
    type, shape = parser.scope.tensors.get(tree.id, ("", ())) if isinstance(tree, ast.Name) else ("", ())
    if not isinstance(tree, ast.Name) or type not in ("int", LONG) or len(shape) != 2:
        raise parser.error(tree, f"{user} takes the name of an int32 or int64 tensor of shape [b, kv_len]", "declare it under tensors")
    return tree.id


def power(parser: "Parser", tree: ast.expr, left: ast.expr, right: ast.expr) -> Node:
    """A product where the exponent is a small whole number of the text, exact for integers; else a power of floats. Raises SpecError."""
    base, exponent = parser.number(left), parser.number(right)
    if isinstance(exponent, Const) and exponent.type == "int" and 0 <= exponent.value <= MAX_POWER:
        parser.grow(int(exponent.value) * sum(1 for _ in walk(base)), tree)
        return reduce(lambda x, y: Call("*", (x, y), base.type), [base] * int(exponent.value) or [Const(1, "int")])
    if base.type == exponent.type == "int":
        hint = "write 2.0 ** x, a power of floats"
        raise parser.error(right, f"an integer's exponent is a whole number of the text, from 0 to {MAX_POWER}", hint)
    return Call("**", (as_float(base), as_float(exponent)), "float")


def compared(parser: "Parser", op: str, left: tuple[ast.expr, Node], right: tuple[ast.expr, Node]) -> Node:
    """A comparison of numbers; of conditions, whether they are the same. Raises SpecError for one beside the other."""
    (tree, a), (_, b) = left, right
    if a.type == b.type == "bool" and op in ("==", "!="):
        no = [Call("~", (x,), "bool") for x in (a, b)]
        pairs = ((a, b), no) if op == "==" else ((a, no[1]), (no[0], b))
        return Call("|", tuple(Call("&", tuple(pair), "bool") for pair in pairs), "bool")
    for at, x in (left, right):
        if x.type == "bool":
            hint = f"write it alone, or ~ before it; as a number it is {EXAMPLES['int']}"
            raise parser.error(at, "expected a number, this is a condition", hint)
    return Call(op, _alike(parser, tree, a, b), "bool")


def _alike(parser: "Parser", tree: ast.expr, a: Node, b: Node) -> tuple[Node, ...]:
    """The sides of a comparison as one type. Raises SpecError for a number of int64 beside a float."""
    if LONG not in (a.type, b.type):
        return join(a, b)
    if "float" in (a.type, b.type):
        raise parser.error(tree, "a number of int64 is compared with one of float32", LONG_HINT)
    return tuple(x if x.type == LONG else Call(LONG, (x,), LONG) for x in (a, b))


def of_long(parser: "Parser", function: Function, args: Sequence[ast.expr]) -> Node | None:
    """A bit of a number of int64, or that number as an integer; None for any other function, or number. Raises SpecError."""
    read = function.name in ("bit", "int") and isinstance(args[0], ast.Subscript)
    if not read or (x := parser.node(args[0])).type != LONG:
        return None
    if function.name == "int":
        return Call(LONG_INT, (x,), "int")
    return Call(LONG_BIT, (x, parser.typed(args[1], "int", "an argument of bit")), "bool")
