"""What templates print of a spec: each part of score and mask computed where it varies, and no further inside."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashgen.expr.lower import Expressions
from flashgen.expr.nodes import Type
from flashgen.expr.signs import Requirement

if TYPE_CHECKING:
    from flashgen.spec import Spec


@dataclass(frozen=True)
class Member:
    """A member of an emitted struct: its value is CUDA text."""

    type: Type
    name: str
    value: str
    comment: str = ""


@dataclass(frozen=True)
class Holes:
    """What fills the holes of a skeleton.

    In scope everywhere: `p`. Of `uniform`, members of struct Variant: batch, head, kv_head. Of `row`, members of struct Row: what
    `uniform` declares, q_idx, kv_begin. Of `score` and `keep`, bodies of functions: what `uniform` declares, row, column; of the
    score also s, the raw q.k.
    """

    uniform: tuple[Member, ...]
    row: tuple[Member, ...]
    score: tuple[str, ...] | None  # None: linear in s, all of it in `outer`
    keep: tuple[str, ...]
    outer: str  # log2 units of one unit of the score
    requires: tuple[Requirement, ...]  # of the params, at each call
    description_score: str
    description_mask: str


def holes(expressions: Expressions, spec: "Spec") -> Holes:
    """The holes of a spec's expressions."""
    raise NotImplementedError
