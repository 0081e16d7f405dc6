"""Small parts of a spec: head dims, params, named subexpressions, the rows and keys of a tile."""

import dataclasses
from dataclasses import dataclass
from typing import Literal

from flashgen.spec.words import argument


@dataclass(frozen=True)
class HeadDim:
    """Columns of q and k, and of v and o."""

    qk: int
    v: int


@dataclass(frozen=True)
class Param:
    """A run-time scalar of the expressions, int32 or float32; an integer default makes it an integer, fit for masks."""

    name: str
    default: int | float
    grad: bool = False  # the backward gives its gradient
    min: int | float | None = None  # at any call; None: any number of its type
    max: int | float | None = None
    type: Literal["int", "float"] = dataclasses.field(init=False)  # a field, because 1 == 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", "int" if isinstance(self.default, int) else "float")

    @property
    def argument(self) -> str:
        """Its name in a launch and in emitted text."""
        return argument(self.name)

    @property
    def interval(self) -> tuple[int, int]:
        """The integers that a call may give."""
        low, high = (-(2**31) if self.min is None else self.min), (2**31 - 1 if self.max is None else self.max)
        return int(low), int(high)


@dataclass(frozen=True)
class Let:
    """A named subexpression, which may name those above it."""

    name: str
    text: str


@dataclass(frozen=True)
class Block:
    """Query rows and keys of a tile; None: the planner chooses."""

    m: int | None = None
    n: int | None = None
