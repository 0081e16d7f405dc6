"""The typed form of an expression: five node kinds, three types. Integers (indices) and floats (scores) never mix silently.

Every analysis and every printer works on these; Python's ast does not go past `parse`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import Literal

Type = Literal[
    "int",
    "float",
    "bool",
    "long long",
    "Divisor",
    "float*",
    "const int*",
    "const long long*",
    "const float*",
    "const bool*",
    "const F16*",
    "const BF16*",
    "const Flag*",
]  # from the fourth on in kernels only

LONG: Type = "long long"
INDEX_NAMES = ("b", "h", "hk", "q_idx", "kv_idx", "q_len", "kv_len")  # all int
V_IDX = "v_idx"  # an integer that `output` alone reads: the column of o
DISTANCE = "q_idx - kv_idx"  # an integer that no text names: what stands for both where nothing else of them is read
OUTPUT_NAMES = ("b", "h", "hk", "q_idx", V_IDX, "q_len", "kv_len")  # all int: what is known where o leaves
INTEGER_NAMES = (*INDEX_NAMES, V_IDX)
COMPUTED = ("s", "o")  # of products, which no two machines round alike
UNIFORM_NAMES = ("b", "h", "hk", "q_len", "kv_len")  # the same for a whole tile, as all params are
UNIFORM, ROW, ELEMENT = 1, 2, 3  # what a name of a kernel varies over: query tiles, rows, elements


@dataclass(frozen=True)
class Const:
    """A number or a truth value in a text."""

    value: int | float | bool
    type: Type


@dataclass(frozen=True)
class Name:
    """A name in a text, which is alike at some level of a kernel."""

    name: str  # `s`, an index name, or a param
    type: Type
    level: int = field(default=UNIFORM, repr=False)  # in a kernel


class Argument(Name):
    """A member of a kernel's Params: the same in all of a call."""


class Length(Argument):
    """The number of elements of an array along an axis that the array alone tells; never negative."""


@dataclass(frozen=True)
class Load:
    """A tensor read; indices outside the tensor are clamped to it."""

    tensor: str
    indices: tuple["Node", ...]
    type: Type


@dataclass(frozen=True)
class Call:
    """An operator or a function: see flashgen.expr.language.functions, which has a row for each.

    A node bound to a kernel (flashgen.expr.holes.bind) may also have `fma`, `quotient` and `remainder` (of what is not negative),
    `key_quotient` and `key_remainder` (of a key), `wrapped`, `Divisor`, `ptx::...`: see templates/device; `__fadd_rn` and the like, of
    floats that decide; `int` and `long long`.
    """

    op: str
    args: tuple["Node", ...]
    type: Type


@dataclass(frozen=True)
class Index(Name):
    """The index of a Summation, from 0 on, as its term reads it. In a kernel nothing that depends on it leaves the loop."""

    level: int = field(default=ELEMENT, repr=False)
    count: int = field(default=1, kw_only=True)


@dataclass(frozen=True)
class Summation:
    """The sum of a float term for each value of an index, from the left: what a kernel has as a loop."""

    index: Index
    term: "Node"
    type: Type = "float"

    @cached_property
    def unrolled(self) -> "Node":
        """The same as its terms are written one by one."""
        return reduce(lambda x, y: Call("+", (x, y), self.type), map(self.at, range(self.index.count)))

    def at(self, i: int) -> "Node":
        """The term where the index is `i`."""
        return substitute(self.term, self.index, Const(i, "int"))


Node = Const | Name | Load | Call | Summation


def children(node: Node) -> tuple[Node, ...]:
    """The nodes directly below."""
    match node:
        case Load(_, indices):
            return indices
        case Call(_, args):
            return args
        case Summation(_, term):
            return (term,)
    return ()


def walk(node: Node) -> Iterator[Node]:
    """The node and everything below it, parents first."""
    yield node
    for child in children(node):
        yield from walk(child)


def names(node: Node) -> frozenset[str]:
    """Every name it reads, tensors apart."""
    return frozenset(n.name for n in walk(node) if isinstance(n, Name))


def rebuild(node: Node, change: Callable[[Node], Node]) -> Node:
    """The node with `change` applied to each child."""
    match node:
        case Load(_, indices):
            return replace(node, indices=tuple(map(change, indices)))
        case Call(_, args):
            return replace(node, args=tuple(map(change, args)))
        case Summation(_, term):
            return replace(node, term=change(term))
    return node


def unrolled(node: Node) -> Node:
    """The node with the terms of every Summation one by one."""
    return rebuild(node.unrolled if isinstance(node, Summation) else node, unrolled)


def substitute(node: Node, name: Name, value: Node) -> Node:
    """The node with a value in the place of a name."""
    return value if node == name else rebuild(node, lambda child: substitute(child, name, value))
