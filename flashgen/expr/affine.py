"""Integers as linear forms over atoms: one canonical shape, so equality is ==, a difference cancels, and a proof is an interval.

>>> x = named("q_idx")
>>> str((2 * x + 5) - (x + 5)), str((4 * x + 6) // 2)
('q_idx', '2 * q_idx + 3')
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Literal

INT32, INT64 = 2**31 - 1, 2**63 - 1
MAX_LENGTH = 2**30  # of q and of k and v; sums of a few positions then fit 32 bits

Op = Literal["name", "read", "//", "%", "*", "min", "max", "select"]


class _Canonical:
    """Equal where the text is equal, and the text is written once."""

    text: str

    def __str__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.text == str(other)

    def __hash__(self) -> int:
        return hash(self.text)


@dataclass(frozen=True, eq=False)
class Atom(_Canonical):
    """A name, a read of a tensor at `args`, or what is not linear; `select(d, x, y)` is x if d <= 0 else y."""

    op: Op
    args: tuple["Int", ...] = ()
    name: str = ""  # of a name, or of the tensor read

    @cached_property
    def text(self) -> str:
        args = [str(arg) for arg in self.args]
        match self.op:
            case "name":
                return self.name
            case "read":
                return f"{self.name}[{', '.join(args)}]"
            case "//" | "%" | "*":
                return f" {self.op} ".join(text if text.replace("_", "").replace(".", "").isalnum() else f"({text})" for text in args)
        return f"{self.op}({', '.join(args)})"

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset((self.name,)) if self.op == "name" else frozenset[str]().union(*(arg.names for arg in self.args))


@dataclass(frozen=True, eq=False)
class Int(_Canonical):
    """const + sum(coefficient * atom), atoms in the order of their texts."""

    const: int = 0
    terms: tuple[tuple[Atom, int], ...] = ()

    @cached_property
    def text(self) -> str:
        parts = [(f"{abs(c)} * ({a})" if a.args else f"{abs(c)} * {a}" if abs(c) > 1 else str(a), c) for a, c in self.terms]
        parts = [(str(a) if c == 1 else f"{abs(c)} * ({a})" if a.op in ("//", "%") else f"{abs(c)} * {a}" if c != -1 else str(a), c) for a, c in self.terms]
        parts += [(str(abs(self.const)), self.const)] if self.const or not parts else []
        text = "".join((" - " if c < 0 else " + ") + part for part, c in parts)
        return text[3:] if text.startswith(" + ") else "-" + text[3:]

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset[str]().union(*(atom.names for atom, _ in self.terms))
