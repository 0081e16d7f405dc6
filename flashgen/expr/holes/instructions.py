"""The cost of an element: instructions of the special function unit, multiplies and adds of floats, and all others."""

from collections.abc import Callable, Iterable

from flashgen.expr.holes.machine import MULTIPLY, OPERATIONS, OTHER
from flashgen.expr.language.functions import row
from flashgen.expr.language.instructions import Instructions
from flashgen.expr.language.nodes import Call, Load, Node, Summation, children, names


def instructions(nodes: Iterable[Node], shared: Callable[[Node], bool] = lambda _: False) -> Instructions:
    """The cost of bound nodes in which everything computed outside, or before, is a name. `shared`: the same in both rows of a thread.

    >>> from flashgen.expr.language.nodes import Name
    >>> s, factor = Name("s", "float"), Name("factor", "float")
    >>> instructions([Call("ptx::tanh", (Call("*", (factor, s), "float"),), "float")])
    Instructions(special=1, multiply=1, other=0)
    """
    return sum((_all(node, shared) for node in nodes), Instructions())


def _all(node: Node, shared: Callable[[Node], bool]) -> Instructions:
    """The cost of a node and of everything below it, of a sum so often as it has terms."""
    below = sum((_all(child, shared) for child in children(node)), Instructions())
    if isinstance(node, Summation):
        return (below + MULTIPLY).times(node.index.count)
    return _own(node).times(0.5 if shared(node) else 1) + below


def _own(node: Node) -> Instructions:
    if names(node) <= {"column"}:  # known to the compiler
        return Instructions()
    match node:
        case Call(op, args):
            if found := OPERATIONS.get(op):
                return found.cost
            function = row(op)
            assert function, op
            return function.cost if args[-1].type == "float" else OTHER
        case Load():
            return OTHER
    return Instructions()
