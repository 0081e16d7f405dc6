"""The holes of a skeleton, filled from a spec: each part of score and mask is computed where it varies, and no further inside."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from flashgen.expr.holes.begins import RENAMED, Separation, begin_hole, begun
from flashgen.expr.holes.bind import Binder, S
from flashgen.expr.holes.factors import finite
from flashgen.expr.holes.hoist import Body, Hoist, Member
from flashgen.expr.holes.leaving import LeavingHole, leaving
from flashgen.expr.holes.loops import Together
from flashgen.expr.holes.parts import MaskHole, ScoreHole, WeightHole, told
from flashgen.expr.holes.passes import Kernel, passed
from flashgen.expr.holes.reach import Reach, reach
from flashgen.expr.holes.reads import KeyReads, Read, key_reads
from flashgen.expr.holes.score import ONE, Score, positive_scale, separated
from flashgen.expr.holes.statistics import OutputHoles, output_holes
from flashgen.expr.holes.weights import weight_hole
from flashgen.expr.language.claims import Requirement
from flashgen.expr.language.fold import call
from flashgen.expr.language.functions import LOG2_E
from flashgen.expr.language.instructions import Instructions
from flashgen.expr.language.nodes import Const, Node
from flashgen.expr.language.read import Expressions
from flashgen.expr.language.text import show
from flashgen.expr.prove.integers import Integers, intervals, of_kernel
from flashgen.expr.prove.rounding import Rounding, rounding
from flashgen.expr.prove.signs import Signs, positive

if TYPE_CHECKING:
    from flashgen.expr.holes.backward import BackwardHoles
    from flashgen.spec import Spec

BEGIN = Instructions(multiply=0.5, other=0.5)  # where the sum of an element begins: the same in both rows, computed and copied
LOADED = Instructions(other=0.75)  # the same, where it is loaded


class Members(NamedTuple):
    """The members of struct Variant, and of struct Row."""

    uniform: tuple[Member, ...]
    row: tuple[Member, ...]


@dataclass(frozen=True, kw_only=True)
class Holes:
    """The text for each hole of a skeleton.

    In scope everywhere: `p`. Of `uniform`, members of struct Variant: batch, head, kv_head. Of `row`, members of struct Row: what
    `uniform` declares, q_idx, kv_begin. Of the score's `column_slope`: what `uniform` declares; of `row_bias`: that, row. Of the bodies of
    score and mask: what `uniform` declares, row, column; of the score also s, the raw q.k; of both, where something is read, at. Of the
    body of `output`: what `uniform` declares, its own row, o, v_idx.
    """

    members: Members
    score: ScoreHole
    mask: MaskHole
    along: KeyReads
    requires: tuple[Requirement, ...]  # of the params, at each call
    reach: Reach | None  # the keys that some query may see by their position alone; None: all
    outputs: OutputHoles
    rows: str  # the template of what a row is, in templates/geometry: of one head, or of a group's
    bounded: bool  # scores lie between -1 and 1 in units of 1 / factor, and are approximate: products with the factor lose nothing
    backward: "BackwardHoles | None" = None  # of a kernel that computes gradients

    @property
    def uniform(self) -> tuple[Member, ...]:
        """The members that are alike for a query tile."""
        return self.members.uniform

    @property
    def row(self) -> tuple[Member, ...]:
        """The members that are alike for a row of a key tile."""
        return self.members.row

    @property
    def reads(self) -> tuple[Read, ...]:
        """The reads of a thread ahead of its scores."""
        return self.along.ahead

    @property
    def together(self) -> Together | None:
        """The score of some elements, where it has sums that are loops."""
        return self.score.body.together if self.score.body and not self.along.shared else None

    @property
    def ahead(self) -> bool:
        """True if a thread knows anything ahead of its scores: what tensors hold, or bits of the mask or of lists."""
        return bool(self.reads or self.mask.columns or self.mask.runs) or self.only_bits

    @property
    def only_bits(self) -> bool:
        """True if bits of the mask or of lists are all that a thread reads ahead of its scores: few, so it reads them a key tile ahead."""
        return (self.mask.bits or self.mask.listed) and not self.reads

    @property
    def numbers(self) -> tuple[Read, ...]:
        """The reads of a warp that brings numbers to shared memory, key tile by key tile."""
        return self.along.numbers

    @property
    def tile(self) -> Read | None:
        """The read of a warp that brings elements of queries and keys to shared memory, key tile by key tile."""
        return self.along.tile

    @property
    def brought(self) -> bool:
        """True if a warp brings anything to shared memory besides q, k and v."""
        return bool(self.numbers or self.score.begin or self.brought_weight)

    @property
    def brought_weight(self) -> Body | None:
        """The factor of what each key counts for after the softmax that a warp brings, if any."""
        return self.weight.of_key if self.weight else None

    @property
    def of_lanes(self) -> int:
        """The numbers of a key that threads take for their elements: of tensors, and its weight twice."""
        return len(self.numbers) + (2 if self.brought_weight else 0)

    @property
    def awaits_begins(self) -> bool:
        """True if numbers at which sums begin are awaited long before: where weights come with them, those before are still to be taken."""
        return self.score.begins_in_registers and not self.brought_weight

    @property
    def weights(self) -> str:
        """The template of who reads those: a warp brings them, or each thread reads its own."""
        return "brought" if self.brought_weight else "read"

    @property
    def keys(self) -> str:
        """The number of keys from kv_begin on, as text."""
        return self.along.keys

    @property
    def weight(self) -> WeightHole | None:
        """A factor of what a key's value counts for, after the softmax."""
        return self.score.weight

    @property
    def shared_reach(self) -> Reach | None:
        """The reach that all query heads of a key/value head share, if they do."""
        return self.reach if self.reach and not self.reach.by_head else None

    @property
    def output(self) -> LeavingHole | None:
        """The expression that o becomes before it is written."""
        return self.outputs.leaving

    @property
    def finishing(self) -> bool:
        """True if the attention itself applies that, where a row is finished."""
        return self.output is not None and not self.output.apart

    @property
    def sink(self) -> str | None:
        """A logit, one more term in the sum of a row."""
        return self.outputs.sink

    @property
    def element(self) -> Instructions:
        """The instructions of an element besides its exponential: its score, and what sums besides l take in."""
        return self.score.instructions + Instructions(multiply=self.outputs.multiplies + (1 if self.weight else 0))

    @property
    def gathers(self) -> bool:
        """True if score or mask reads tensors element by element, at indices of which nothing is known."""
        return any(body.gathers for body in self._bodies if body)

    @property
    def divides(self) -> bool:
        """True if score or mask of an element divides by a number that only the kernel knows."""
        return any(body.divides for body in self._bodies if body)

    @property
    def _bodies(self) -> tuple[Body | None, ...]:
        return self.score.body, self.mask.body, self.weight.body if self.weight else None


def holes(
    expressions: Expressions,
    spec: "Spec",
    tanh: float = 2.0**-11,
    separate: bool = False,
    backward: bool = False,
    beyond: bool = False,
    rows: str = "rows_of_head",
    shares_numbers: bool = False,
    shares_tiles: bool = False,
) -> Holes:
    """The holes of a spec's expressions, for a machine whose tanh in one instruction has this relative error.

    `separate`: what a score adds to rows and to columns is separated (`flashgen.expr.holes.separated`). `backward`: of a kernel of
    gradients, which reads nothing ahead. `beyond`: copies bring keys beyond a sequence's end. `rows`: or `rows_of_group`, where a row
    has its head. `shares_numbers`, `shares_tiles`: shared memory can have what a score reads at its key alone, or by its row.

    >>> from flashgen.expr import lower
    >>> from flashgen.spec import Spec
    >>> spec = Spec(head_dim=64, dtype="bfloat16", mask="causal", score="softcap * tanh(s / softcap)", params={"softcap": 50.0})
    >>> found = holes(lower(spec), spec)
    >>> found.score.body.lines, found.mask.body.lines, found.score.factor
    (('return ptx::tanh(inner * s);',), ('return column < row.end;',), 'factor')
    """
    chosen = rounding(expressions, spec, tanh)
    scale, usual = positive_scale(expressions.scale, Signs(positive(spec.params)))
    bound = partial(Binder, spec, scale, heads_by_row=rows == "rows_of_group", way=chosen.way if chosen else "short")
    hoist = Hoist(Integers(of_kernel, intervals(spec.params, *expressions.parts.values())), lanes=spec.native, together=not backward)
    kernel, beside = Kernel(bound(ahead=not backward), hoist), partial(bound, ahead=False)
    start = begun(expressions.score, spec, Kernel(beside(), hoist)) if shares_numbers else None
    parts = start[0] if start else separated(passed(expressions.score, "score", kernel), spec, kernel.binder.signs, separate)
    factor = call("*", parts.factor, Const(LOG2_E, "float")) if spec.softmax.normalized else ONE
    weight = weight_hole(expressions.weight, beside, hoist, shares_numbers)
    score = replace(_score(hoist, parts, factor, told(expressions.score, spec), chosen), weight=weight)
    score = _begun(score, start[1], parts.factor, partial(beside, way="fast"), hoist) if start else score
    outputs = _outputs(expressions, spec, parts, kernel, leaving(expressions, spec, Kernel(beside(way="fast"), hoist), backward))
    keep = hoist.body(passed(expressions.mask, "mask", kernel))
    along = key_reads(kernel, keep, shares_numbers, shares_tiles and not start)
    return Holes(
        score=score,
        mask=_mask(expressions, keep, hoist),
        along=along,
        requires=_once(*expressions.requires, *parts.requires(usual), *finite((factor, *hoist.factors), expressions.scale, spec)),
        reach=reach(expressions.mask, spec, beyond),
        outputs=outputs,
        rows=rows,
        bounded=parts.bounded and not score.biased,
        backward=_backward(spec, parts.rest, kernel, outputs.leaving) if backward else None,
        members=_members(hoist, along, spec),  # which all others have asked for by now
    )


def _once(*found: Requirement) -> tuple[Requirement, ...]:
    return tuple({requirement.text: requirement for requirement in found}.values())


def _members(hoist: Hoist, along: KeyReads, spec: "Spec") -> Members:
    uniform, row = hoist.members()
    return Members((*uniform, *along.ways("first_key" if "kv_len" in spec.geometry.behind else "p.kv_len")), row)


def _sink(expressions: Expressions, kernel: Kernel) -> str | None:
    if expressions.sink is None:
        return None
    return kernel.hoist.text(passed(expressions.sink, "sink", kernel), "sink", "one more term in the sum of a row")


def _backward(spec: "Spec", rest: Node, kernel: Kernel, leaving: LeavingHole | None) -> "BackwardHoles":
    from flashgen.expr.holes.backward import backward_holes  # which no forward needs

    return backward_holes(spec, rest, kernel, leaving.back.gradients if leaving and leaving.back else ())


def _score(hoist: Hoist, parts: Score, factor: Node, text: str, rounding: Rounding | None) -> ScoreHole:
    of_factor = hoist.text(factor, "factor", "log2 units of one unit of the score")
    body = None if parts.rest == S else hoist.body(parts.rest)
    slope = None if parts.column_slope is None else hoist.text(parts.column_slope, "slope", "of the raw q.k, from column to column")
    return ScoreHole(
        text=text,
        body=body,
        factor=of_factor,
        column_slope=slope,
        row_bias=_bias(hoist, parts.row_bias),
        instructions=hoist.instructions + (Instructions() if slope is None else BEGIN),
        rounding=rounding,
        beside=parts.beside,
        weight=None,
        begin=None,
    )


def _begun(score: ScoreHole, found: Separation, factor: Node, binder: Callable[..., Binder], hoist: Hoist) -> ScoreHole:
    begin = begin_hole(found, factor, Kernel(binder(renamed=RENAMED[found.along]), hoist))
    loaded = LOADED if found.along == "distances" else Instructions()
    return replace(score, begin=begin, instructions=score.instructions + loaded)


def _bias(hoist: Hoist, node: Node | None) -> str | None:
    return None if node is None else hoist.text(node, "bias", "what all its scores have besides")


def _outputs(expressions: Expressions, spec: "Spec", parts: Score, kernel: Kernel, leaving: LeavingHole | None) -> OutputHoles:
    hoist, unit = kernel.hoist, parts.of_slopes
    return output_holes(
        spec,
        sink=_sink(expressions, kernel),
        settled=_bias(hoist, parts.settled),
        of_slopes=None if unit is None else hoist.text(unit, "unit", "of the score, which slopes are divided by"),
        leaving=leaving,
    )


def _mask(expressions: Expressions, keep: Body, hoist: Hoist) -> MaskHole:
    early = tuple(k.name for k in hoist.of_any_row() if k.value.type == "int" and not k.end and keep.reads(k.name))
    return MaskHole(text=show(expressions.mask), body=keep, early=early)
