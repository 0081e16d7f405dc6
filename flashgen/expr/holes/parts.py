"""The holes of score, mask and weight, as text."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from flashgen.expr.holes.begins import Begin
from flashgen.expr.holes.hoist import Body
from flashgen.expr.language.instructions import Instructions
from flashgen.expr.language.nodes import Node
from flashgen.expr.language.text import show
from flashgen.expr.prove.rounding import Rounding

if TYPE_CHECKING:
    from flashgen.expr.holes.runs import Runs
    from flashgen.spec import Spec

MAX_TOLD = 1000  # characters of a score that are told


@dataclass(frozen=True, kw_only=True)
class WeightHole:
    """The text of a factor of what a key's value counts for, after the softmax."""

    text: str  # as in the language
    body: Body | None  # of an element; None: all of it is what its key alone decides
    of_key: Body | None  # of `kv_idx`, a factor that a warp brings, if any

    @property
    def told(self) -> str:
        """The text of the part that an element computes."""
        return f"{self.text}, but for weight_of the key" if self.of_key else self.text

    @property
    def told_of_key(self) -> str:
        """The text of the part that a warp brings."""
        return f"{self.text}: the factor of a key" if self.body else self.text


@dataclass(frozen=True, kw_only=True)
class ScoreHole:
    """The text of a score."""

    text: str  # as in the language
    body: Body | None  # of an element, in units of 1 / factor; None: linear in s, all of it in the factor
    factor: str  # log2 units of one unit of the score
    column_slope: str | None  # of the raw q.k from column to column, where its sums begin; None: they begin at 0
    row_bias: str | None  # what every score of a row has besides in a key tile, where that follows the tile; in units of the score
    instructions: Instructions  # of an element, besides what makes exponents of it
    rounding: Rounding | None  # of tanh and sigmoid
    beside: bool  # whether an element computes anything besides s but multiples of its column
    weight: WeightHole | None  # what comes after it and the softmax
    begin: Begin | None  # where the sums of q.k begin, if at what a warp brings

    @property
    def of_row(self) -> str:
        """The template of what stands for a row's scores where they are compared and subtracted."""
        return "biased" if self.biased else "unbiased"

    @property
    def planes(self) -> str:
        """The template of the units in which planes of float32 hold q: log2 units of a linear score, or those of q itself."""
        return "own_units" if self.body else "log2_units"

    @property
    def begins_in_registers(self) -> bool:
        """True if threads load where sums begin."""
        return self.begin is not None and self.begin.along == "distances"

    @property
    def begins_by_product(self) -> bool:
        """True if a product makes where sums begin."""
        return self.begin is not None and self.begin.along == "keys"

    @property
    def biased(self) -> bool:
        """True if all scores of a row may have something besides that differs from key tile to key tile."""
        return bool(self.row_bias or self.begin)


@dataclass(frozen=True, kw_only=True)
class MaskHole:
    """The text of a mask."""

    text: str  # as in the language
    body: Body  # of an element: whether the query attends to the key
    early: tuple[str, ...]  # members of Row in it, besides an end, that all rows share: known long before the products
    bits: bool = False  # a kernel before has evaluated it
    runs: "Runs | None" = None  # it asks whether keys hold a row's number, of which a kernel before has found runs
    listed: bool = False  # it holds besides that lists have the key, of which a kernel before has made bits
    hides: Literal["scores", "exponents"] = "scores"  # the template of what it hides in key tiles that test it
    columns: str = ""  # the same of all of a thread's columns in a row: a bit each; none where it is asked pair by pair


def told(score: Node, spec: "Spec") -> str:
    """The score in the language: with constants folded, or where that is long, as the spec has it."""
    text = show(score)
    named = [f"{one.name} = {one.text}" for one in spec.let if len(text) > MAX_TOLD]
    return text if len(text) <= MAX_TOLD else ", ".join((spec.score, *named))
