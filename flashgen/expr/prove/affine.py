"""Integers as linear forms over atoms: one canonical shape, so equality is ==, a difference cancels, and a proof is an interval.

>>> x = named("q_idx")
>>> str((2 * x + 5) - (x + 5)), str((4 * x + 6) // Int(2))
('q_idx', '2 * q_idx + 3')
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import prod
from typing import Any, Literal

from flashgen.spec.words import argument

INT32, INT64 = 2**31 - 1, 2**63 - 1
MAX_LENGTH = 2**30  # of queries and of keys: small sums of positions then fit 32 bits

Extreme = Callable[..., "Int"]  # of two or more
Op = Literal["name", "read", "//", "%", "*", "min", "max", "select"]


class _Canonical:
    """Equal where the text is equal, and the text is written once."""

    text: Any  # a cached property, of str

    def __str__(self) -> str:
        return str(self.text)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.text == str(other)

    def __hash__(self) -> int:
        return hash(self.text)


@dataclass(frozen=True, eq=False)
class Atom(_Canonical):
    """A name, a read of a tensor at `args`, or what is not linear; select(d, x, y) is x if d <= 0 else y."""

    op: Op
    args: tuple["Int", ...] = ()
    name: str = ""  # of a name, or of the tensor read

    @cached_property
    def text(self) -> str:
        """The atom as CUDA text, which also orders and identifies it."""
        args = [str(arg) for arg in self.args]
        match self.op:
            case "name":
                return self.name
            case "read":
                return f"{self.name}[{', '.join(args)}]"
            case "//" | "%" | "*":
                return f" {self.op} ".join(map(grouped, args))
        return f"{self.op}({', '.join(args)})"

    @cached_property
    def reads(self) -> bool:
        """True if a tensor is read in it."""
        return self.op == "read" or any(atom.reads for arg in self.args for atom, _ in arg.terms)

    @cached_property
    def names(self) -> frozenset[str]:
        """The names in it, at any depth."""
        return frozenset((self.name,)) if self.op == "name" else frozenset[str]().union(*(arg.names for arg in self.args))


@dataclass(frozen=True, eq=False)
class Int(_Canonical):
    """const + sum(coefficient * atom), the atoms in the order of their texts."""

    const: int = 0
    terms: tuple[tuple[Atom, int], ...] = ()

    @cached_property
    def text(self) -> str:
        """The form as CUDA text, which also identifies it."""
        parts = [(_alone(str(a)) if c == 1 else f"-{grouped(str(a))}" if c == -1 else f"{c} * {grouped(str(a))}") for a, c in self.terms]
        parts += [str(self.const)] if self.const or not parts else []
        return " + ".join(parts).replace(" + -", " - ")

    @cached_property
    def names(self) -> frozenset[str]:
        """The names in it, at any depth."""
        return frozenset[str]().union(*(atom.names for atom, _ in self.terms))

    def __add__(self, other: "Int | int") -> "Int":
        other = number(other)
        return _collect(self.const + other.const, (*self.terms, *other.terms))

    def __neg__(self) -> "Int":
        return Int(-self.const, tuple((atom, -c) for atom, c in self.terms))

    def __sub__(self, other: "Int | int") -> "Int":
        return self + -number(other)

    def __rsub__(self, other: int) -> "Int":
        return -self + other

    def __mul__(self, other: "Int | int") -> "Int":
        other = number(other)
        scaled = [(atom, c * other.const) for atom, c in self.terms] + [(atom, c * self.const) for atom, c in other.terms]
        crossed = [(_product(x, y), c * d) for (x, c), (y, d) in product(self.terms, other.terms)]
        return _collect(self.const * other.const, (*scaled, *crossed))

    def __floordiv__(self, n: "Int") -> "Int":
        """The quotient by n > 0; multiples of a constant n leave the division."""
        if n.terms:
            return of(Atom("//", (self, n))) if self.text != "0" else self
        whole = Int(self.const // n.const, tuple((atom, c // n.const) for atom, c in self.terms if c % n.const == 0))
        rest = self - whole * n
        return whole + of(Atom("//", (rest, n))) if rest.terms else whole

    def __mod__(self, n: "Int") -> "Int":
        """The remainder by n > 0."""
        return of(Atom("%", (self, n))) if self.terms or n.terms else Int(self.const % n.const)

    __radd__, __rmul__ = __add__, __mul__


def grouped(text: str) -> str:
    """The text, in parentheses if an operator stands outside of all brackets."""
    depth = 0
    for char in text:
        depth += (char in "([") - (char in ")]")
        if char == " " and not depth:
            return f"({text})"
    return text


def _alone(text: str) -> str:
    """The text, in parentheses if it begins with a sign, which another term before it would take for its own."""
    return f"({text})" if text.startswith("-") else text


def of(atom: Atom) -> Int:
    """The form that is one atom."""
    return Int(0, ((atom, 1),))


def named(name: str) -> Int:
    """The form that is a name."""
    return of(Atom("name", name=name))


def param(name: str) -> str:
    """The name of a param or tensor in forms: that of a kernel."""
    return f"p.{argument(name)}"


def user_name(name: str) -> str:
    """The spec's own name of a param or tensor in forms, without what keeps it apart there; other names as they end.

    >>> user_name(param("cap")), user_name("row.index")
    ('cap', 'index')
    """
    return name.rpartition(".")[2].removeprefix(argument(""))


def substitute(x: Int, meanings: Mapping[str, Int]) -> Int:
    """The form with each name that has a meaning written out, however deep it stands."""
    return sum((c * _substituted(atom, meanings) for atom, c in x.terms), Int(x.const))


def _substituted(atom: Atom, meanings: Mapping[str, Int]) -> Int:
    if atom.op == "name":
        return substitute(meanings[atom.name], meanings) if atom.name in meanings else of(atom)
    args = [substitute(arg, meanings) for arg in atom.args]
    match atom.op:
        case "//":
            return args[0] // args[1]
        case "%":
            return args[0] % args[1]
        case "*":
            return prod(args, start=Int(1))
        case "min" | "max":
            return (smallest if atom.op == "min" else largest)(*args)
        case "select":
            return select(*args)
    return of(replace(atom, args=tuple(args)))


def number(x: Int | int) -> Int:
    """A Python integer as a form; a form stays as it is."""
    return x if isinstance(x, Int) else Int(x)


def _collect(const: int, terms: Iterable[tuple[Atom, int]]) -> Int:
    total: dict[Atom, int] = {}
    for atom, c in terms:
        total[atom] = total.get(atom, 0) + c
    return Int(const, tuple(sorted(((atom, c) for atom, c in total.items() if c), key=lambda term: term[0].text)))


def untangled(x: Int, meanings: Mapping[str, Int]) -> Int:
    """The form with each name that has a meaning written out, where it stands by itself."""
    const, terms = x.const, list[tuple[Atom, int]]()
    for atom, c in x.terms:
        meaning = meanings.get(atom.name, of(atom)) if atom.op == "name" else of(atom)
        const += c * meaning.const
        terms += [(a, c * d) for a, d in meaning.terms]
    return _collect(const, terms)


def _product(x: Atom, y: Atom) -> Atom:
    factors = [factor for atom in (x, y) for factor in (atom.args if atom.op == "*" else (of(atom),))]
    return Atom("*", tuple(sorted(factors, key=str)))


def smallest(*xs: Int) -> Int:
    """The least of several forms, as few atoms as can be proven."""
    return _extreme("min", min, xs)


def largest(*xs: Int) -> Int:
    """The greatest of several forms, as few atoms as can be proven."""
    return _extreme("max", max, xs)


def operations(smallest: Extreme = smallest, largest: Extreme = largest) -> dict[str, Callable[..., Int]]:
    """The operators and functions of integers, by name; `//` and `%` are by what is positive. Those that know facts have other extremes.

    >>> str(operations()["abs"](named("q_idx") - 1))
    'max(-q_idx + 1, q_idx - 1)'
    """
    return {
        "+": lambda x, y: x + y,
        "-": lambda x, y: x - y,
        "*": lambda x, y: x * y,
        "neg": lambda x: -x,
        "abs": lambda x: largest(x, -x),
        "min": smallest,
        "max": largest,
        "//": lambda x, n: x // n,
        "%": lambda x, n: x % n,
    }


def _extreme(op: Literal["min", "max"], fold: Callable[[Iterable[int]], int], xs: tuple[Int, ...]) -> Int:
    flat = {part: None for x in xs for part in parts(op, x)}
    constants = [x.const for x in flat if not x.terms]
    kept = [*([Int(fold(constants))] if constants else []), *sorted((x for x in flat if x.terms), key=str)]
    return kept[0] if len(kept) == 1 else of(Atom(op, tuple(kept)))


def parts(op: Op, x: Int) -> tuple[Int, ...]:
    """The arguments of x if it is an `op`, else x alone."""
    atom = alone(x)
    return atom.args if atom and atom.op == op else (x,)


def alone(x: Int) -> Atom | None:
    """The atom that x is, if it is one."""
    return x.terms[0][0] if not x.const and len(x.terms) == 1 and x.terms[0][1] == 1 else None


def select(d: Int, x: Int, y: Int) -> Int:
    """x if d <= 0 else y."""
    if x == y:
        return x
    return of(Atom("select", (d, x, y))) if d.terms else x if d.const <= 0 else y
