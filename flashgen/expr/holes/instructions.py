"""What an element costs: instructions of the special function unit, multiplies and adds of floats, and all others."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from flashgen.expr.language.nodes import Call, Load, Node, names, walk

_DIVISION = 8  # multiplies and adds of a division that rounds to the nearest, besides its reciprocal
_FUNCTION = 10  # of a function as float32 has it


@dataclass(frozen=True)
class Instructions:
    """Numbers of instructions; half of one is computed once for two rows."""

    special: float = 0  # MUFU
    multiply: float = 0  # FFMA, FMUL, FADD
    other: float = 0  # of integers, comparisons, choices, reads

    def __add__(self, more: "Instructions") -> "Instructions":
        return Instructions(self.special + more.special, self.multiply + more.multiply, self.other + more.other)

    def times(self, count: float) -> "Instructions":
        return Instructions(self.special * count, self.multiply * count, self.other * count)

    @property
    def floats(self) -> float:
        return self.special + self.multiply

    @property
    def all(self) -> float:
        return self.floats + self.other


def instructions(nodes: Iterable[Node], shared: Callable[[Node], bool] = lambda _: False) -> Instructions:
    """Of bound nodes in which everything that is computed outside, or before, is a name. `shared`: the same in both rows of a thread.

    >>> from flashgen.expr.language.nodes import Name
    >>> s, factor = Name("s", "float"), Name("factor", "float")
    >>> instructions([Call("ptx::tanh", (Call("*", (factor, s), "float"),), "float")])
    Instructions(special=1, multiply=1, other=0)
    """
    return sum((_own(node).times(0.5 if shared(node) else 1) for root in nodes for node in walk(root)), Instructions())


def _own(node: Node) -> Instructions:
    if names(node) <= {"column"}:  # known to the compiler
        return Instructions()
    match node:
        case Call("ptx::exp2" | "ptx::tanh" | "ptx::log2" | "ptx::sqrt" | "ptx::inverse"):
            return Instructions(special=1)
        case Call("/" | "__fdiv_rn" | "__fsqrt_rn", _, "float"):
            return Instructions(special=1, multiply=_DIVISION)
        case Call("exp" | "exp2" | "log" | "tanh" | "sqrt"):
            return Instructions(special=1, multiply=_FUNCTION)
        case Call("+" | "-" | "*" | "fma" | "__fadd_rn" | "__fsub_rn" | "__fmul_rn", _, "float"):
            return Instructions(multiply=1)
        case Call() | Load():
            return Instructions(other=1)
    return Instructions()
