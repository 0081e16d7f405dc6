"""Claims that an expression rests on beyond its grammar: made where it is read, at a position in the text, and proved later."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from flashgen.errors import SpecError
from flashgen.expr.language.nodes import Node


@dataclass(frozen=True)
class Claim:
    """A node that must be positive, an integer that 64 bits must hold, or a condition on params that must hold at each call."""

    kind: Literal["positive", "exact", "holds"]
    node: Node
    subject: str  # "the right side of //"; of a condition, all that it says
    source: str
    refuse: Callable[[str, str], SpecError]  # the error at the position, of a message and a hint


@dataclass(frozen=True)
class Requirement:
    """A condition on params that must hold at each call: as text, as a node over params, and what to tell who breaks it."""

    text: str
    node: Node
    message: str
