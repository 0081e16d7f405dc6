"""What an element costs: instructions of the special function unit, and multiplies and adds of floats."""

from collections.abc import Iterable
from dataclasses import dataclass

from flashgen.expr.nodes import Call, Node, walk

_DIVISION = 8  # multiplies and adds of a division that rounds to the nearest, besides its reciprocal


@dataclass(frozen=True)
class Instructions:
    """Numbers of instructions."""

    special: int = 0  # MUFU
    multiply: int = 0  # FFMA, FMUL, FADD

    def __add__(self, other: "Instructions") -> "Instructions":
        return Instructions(self.special + other.special, self.multiply + other.multiply)

    def times(self, count: int) -> "Instructions":
        return Instructions(self.special * count, self.multiply * count)


def instructions(nodes: Iterable[Node]) -> Instructions:
    """Of bound nodes in which everything that is computed outside, or before, is a name.

    >>> from flashgen.expr.nodes import Name
    >>> s, factor = Name("s", "float"), Name("factor", "float")
    >>> instructions([Call("ptx::tanh", (Call("*", (factor, s), "float"),), "float")])
    Instructions(special=1, multiply=1)
    """
    return sum((_own(node) for root in nodes for node in walk(root)), Instructions())


def _own(node: Node) -> Instructions:
    match node:
        case Call("ptx::exp2" | "ptx::tanh" | "ptx::log2" | "ptx::sqrt"):
            return Instructions(special=1)
        case Call("/", _, "float"):
            return Instructions(special=1, multiply=_DIVISION)
        case Call("+" | "-" | "*" | "fma", _, "float"):
            return Instructions(multiply=1)
    return Instructions()
