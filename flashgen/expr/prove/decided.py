"""Comparisons that the bounds of params decide."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from flashgen.expr.language.fold import FALSE, TRUE, call
from flashgen.expr.language.nodes import Call, Node, names, rebuild
from flashgen.expr.prove.integers import Integers, intervals, of_language

if TYPE_CHECKING:
    from flashgen.spec import Param


def decided(node: Node, params: "Iterable[Param]") -> Node:
    """The folded node with each comparison of integers that the bounds of params decide as what it is.

    >>> from flashgen.expr.language.text import show
    >>> from flashgen.expr.language.nodes import Const, Name
    >>> from flashgen.spec import Param
    >>> show(decided(Call("<", (Name("n", "int"), Const(0, "int")), "bool"), [Param("n", 8, min=0)]))
    'False'
    """
    bounded = {p.name: p for p in params if (p.min, p.max) != (None, None)}
    return _decided(node, frozenset(bounded), Integers(of_language, intervals(bounded.values()))) if bounded else node


def _decided(node: Node, bounded: frozenset[str], integers: Integers) -> Node:
    if names(node).isdisjoint(bounded):
        return node
    node = rebuild(node, lambda child: _decided(child, bounded, integers))
    match node:
        case Call("<" | "<=" | ">" | ">=" | "==" | "!=" as op, (a, b)) if a.type == "int":
            low, high = integers.extent(Call("-", (a, b), "int"))
            yes = {"<": high < 0, "<=": high <= 0, ">": low > 0, ">=": low >= 0, "==": low == high == 0, "!=": low > 0 or high < 0}
            no = {"<": low >= 0, "<=": low > 0, ">": high <= 0, ">=": high < 0, "==": low > 0 or high < 0, "!=": low == high == 0}
            return TRUE if yes[op] else FALSE if no[op] else node
        case Call(op, args):
            return call(op, *args)
    return node
