"""What templates print of a spec: each part of score and mask computed where it varies, and no further inside."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashgen.dtypes import float32_text
from flashgen.expr.holes.apart import take_apart
from flashgen.expr.holes.bind import ELEMENT, KV_BEGIN, RENAMED, SCALE, UNIFORM, Binder, S, level
from flashgen.expr.holes.division import divide_rows
from flashgen.expr.holes.factors import held
from flashgen.expr.holes.hoist import Hoist, Member
from flashgen.expr.holes.reach import Reach, reach
from flashgen.expr.holes.saturate import saturated
from flashgen.expr.language.claims import Requirement
from flashgen.expr.language.fold import FALSE, TRUE, call, fold
from flashgen.expr.language.functions import LOG2_E
from flashgen.expr.language.instructions import Instructions
from flashgen.expr.language.nodes import Call, Const, Load, Name, Node, names, walk
from flashgen.expr.language.read import Expressions
from flashgen.expr.language.text import show
from flashgen.expr.prove.integers import Integers, divisors, of_kernel
from flashgen.expr.prove.linear import Sum, assemble, collect, zero
from flashgen.expr.prove.rounding import Form, form
from flashgen.expr.prove.signs import Signs
from flashgen.expr.tiles.conditions import visible

if TYPE_CHECKING:
    from flashgen.spec import Spec

ONE = Const(1.0, "float")
LEAST_CONSTANT = 2.0**-20
LEAST_SCALE = 2.0**-100  # that a column's slope is divided by, and that is not 0 times the unit of a plane
BEGIN = Instructions(multiply=0.5, other=0.5)  # where the sum of an element begins: the same in both rows, computed and copied


@dataclass(frozen=True)
class Read:
    """Elements of a tensor beside each other along the keys, read before the score that they are for is there."""

    type: str
    name: str  # a member of At
    tensor: str  # as the text calls it
    address: str  # of the first, a member of Row
    by_row: bool  # whether it differs from query to query

    @property
    def flags(self) -> bool:
        """Whether they are bools, of which two share a word."""
        return self.type == "u32"

    @property
    def pair(self) -> str:
        """The type of two beside each other."""
        return self.type if self.flags else f"Two<{self.type}>"

    @property
    def rows(self) -> tuple[str, str]:
        """What two elements of each row of two are called: the same unless rows differ."""
        return self.name, f"below_{self.name}" if self.by_row else self.name

    def of_row(self, r: int) -> str:
        """Two elements of a row of two."""
        return f"{self.tensor}.template {'flags' if self.flags else 'two'}<PAIRED>(row[{r}].{self.address}, column, end)"

    def halves(self, name: str) -> tuple[str, str]:
        """Its left and its right element."""
        return (name, name) if self.flags else (f"{name}.left", f"{name}.right")


@dataclass(frozen=True)
class Holes:
    """What fills the holes of a skeleton.

    In scope everywhere: `p`. Of `uniform`, members of struct Variant: batch, head, kv_head. Of `row`, members of struct Row: what
    `uniform` declares, q_idx, kv_begin. Of `column_slope`: what `uniform` declares; of `row_bias`: that, row. Of `score` and `keep`,
    bodies of functions: what `uniform` declares, row, column; of the score also s, the raw q.k; of both, where something is read, at.
    """

    uniform: tuple[Member, ...]
    row: tuple[Member, ...]
    score: tuple[str, ...] | None  # None: linear in s, all of it in `outer`
    column_slope: str | None  # of the raw q.k from column to column, where its sums begin; None: they begin at 0
    row_bias: str | None  # what every score of a row has besides in a key tile, in units of the score
    keep: tuple[str, ...]
    early: tuple[str, ...]  # members of Row in the mask, besides an end, that all rows share: known long before the products
    reads: tuple[Read, ...]
    keys: str  # from kv_begin to kv_len
    outer: str  # log2 units of one unit of the score
    requires: tuple[Requirement, ...]  # of the params, at each call
    sink: str | None  # a logit, one more term in the sum of a row
    description_score: str
    description_mask: str
    instructions: Instructions  # of the score of an element, besides what makes exponents of it
    form: Form | None  # of tanh and sigmoid in the score
    beside: bool  # whether the score computes, of each element, anything besides s but multiples of its column
    reach: Reach | None  # the keys that some query may see by their place alone; None: all

    @property
    def shared_reach(self) -> Reach | None:
        """The reach that all query heads of a key/value head share, if they do."""
        return self.reach if self.reach and not self.reach.by_head else None

    @property
    def gathers(self) -> bool:
        """Whether score or mask reads tensors element by element, at indices of which nothing is known."""
        return any("p.arg_" in line for line in (*(self.score or ()), *self.keep))

    @property
    def divides(self) -> bool:
        """Whether score or mask of an element divides by what only the kernel knows."""
        return any(".remainder(" in line or ".quotient(" in line for line in (*(self.score or ()), *self.keep))

    def read_registers(self, block_n: int) -> int:
        """Registers a thread for what is read ahead of `block_n` keys."""
        return sum(block_n // (2 if read.by_row else 4) // (2 if read.flags else 1) for read in self.reads)


def holes(expressions: Expressions, spec: "Spec", tanh: float = 2.0**-11, apart: bool = False) -> Holes:
    """The holes of a spec's expressions, for a machine whose tanh in one instruction has this relative error.

    `apart`: what a score adds to a row, and to a column, is told apart from the rest of it (see `flashgen.expr.holes.apart`).

    >>> from flashgen.expr import lower
    >>> from flashgen.spec import Spec
    >>> spec = Spec(head_dim=64, dtype="bfloat16", mask="causal", score="softcap * tanh(s / softcap)", params={"softcap": 50.0})
    >>> found = holes(lower(spec), spec)
    >>> found.score, found.keep, found.outer
    (('return ptx::tanh(inner * s);',), ('return column < row.end;',), 'factor')
    """
    params = Signs({p.name: frozenset([p.name]) for p in spec.params if p.default > 0})
    chosen = form(expressions, spec, tanh)
    scale, large = _positive_scale(expressions.scale, params)
    binder = Binder(spec, scale, chosen is None or chosen.short)
    integers = Integers(of_kernel, divisors(expressions.score, expressions.mask))
    hoist = Hoist(integers)

    def bind(node: Node) -> Node:
        return divide_rows(binder(saturated(node)), binder.signs, integers)

    score = _score(bind(expressions.score), spec, binder.signs, apart)
    factor = _log2(score.factor) if spec.softmax.normalized else ONE
    outer = hoist.text(factor, "factor", "log2 units of one unit of the score")
    statements = None if score.rest == S else hoist.statements(score.rest)
    column_slope = None if score.column_slope is None else hoist.text(score.column_slope, "slope", "of the raw q.k, from column to column")
    row_bias = None if score.row_bias is None else hoist.text(score.row_bias, "bias", "what all its scores have besides")
    cost = hoist.instructions + (Instructions() if score.column_slope is None else BEGIN)
    sink = None
    if expressions.sink is not None:
        sink = hoist.text(bind(expressions.sink), "sink", "one more term in the sum of a row")
    keep = hoist.statements(hoist.tidy(bind(visible(expressions.mask)), _varies))
    of_factor = (*map(_positive, sorted(score.proof)), *(large if SCALE.name in names(score.factor) else ()))
    requires = {r.text: r for r in (*expressions.requires, *of_factor, *held((factor, *hoist.factors), expressions.scale, spec))}
    reads = tuple(_read(hoist, address, name) for address, name in binder.reads.items())
    shared = [k.name for k in hoist.of_any_row() if k.value.type == "int" and not k.name.startswith("end")]
    early = tuple(name for name in shared if _reads_member(keep, name))
    keys = hoist.member(call("-", RENAMED["kv_len"], KV_BEGIN), "keys", "from kv_begin to kv_len") if reads else ""
    uniform, row = hoist.members()
    if reads:
        paired = " && ".join(dict.fromkeys(f"{read.tensor}.paired(p.kv_len)" for read in reads))
        uniform = (*uniform, Member("bool", "paired", paired, comment="tensors can be read two elements at a time"))
    emitted = (uniform, row, statements, column_slope, row_bias, keep, early, reads, keys, outer, tuple(requires.values()), sink)
    described = show(expressions.score), show(expressions.mask)
    return Holes(*emitted, *described, cost, chosen, score.beside, reach(expressions.mask, spec))


@dataclass(frozen=True)
class _Score:
    """`factor`, positive and uniform, times the sum of `rest` and `row_bias`; the raw q.k begins at `column_slope` times the column."""

    factor: Node
    rest: Node
    row_bias: Node | None
    column_slope: Node | None
    proof: frozenset[str]  # the params that the sign of the factor rests on

    @property
    def beside(self) -> bool:
        """Whether it computes of an element what is neither s nor a multiple of its column."""
        calls = (node for node in walk(self.rest) if isinstance(node, Call) and _varies(node) and "s" not in names(node))
        return any(node.op not in ("fma", "+", "-", "*", "float") for node in calls)


def _score(bound: Node, spec: "Spec", signs: Signs, apart: bool) -> _Score:
    total = collect(bound, _varies)
    if not spec.softmax.normalized:
        return _Score(ONE, assemble(total), None, None, frozenset())
    if not apart:
        factor, rest, proof = _split(total, signs)
        return _Score(factor, assemble(rest), None, None, proof)
    parts = take_apart(total, signs)
    factor, rest, proof = _split(parts.rest, signs)
    row_bias = None if parts.row_bias == zero("float") else parts.row_bias_over(factor)
    if not _may_divide(factor) and not (row_bias is None and parts.column_slope is None):
        return _score(bound, spec, signs, apart=False)
    return _Score(factor, assemble(rest), row_bias, parts.column_slope, proof)


def _may_divide(factor: Node) -> bool:
    """Whether it is the scale of a call, which is not next to 0, but for a constant that is not either: what it divides stays finite."""
    constants = [node.value for node in walk(factor) if isinstance(node, Const)]
    return names(factor) <= {SCALE.name} and all(abs(value) >= LEAST_CONSTANT for value in constants)


def _read(hoist: Hoist, address: Load, name: Name) -> Read:
    _, _, called = name.name.partition(".")
    by_row = any(level(index) > UNIFORM for index in address.indices[:-1])
    _, _, member = hoist.member(address, called.removeprefix("arg_") + "_row").partition(".")
    kind = "u32" if address.type == "const bool*" else name.type
    return Read(type=kind, name=called, tensor=address.tensor.removesuffix(".address"), address=member, by_row=by_row)


def _reads_member(lines: tuple[str, ...], name: str) -> bool:
    return any(re.search(rf"\brow\.{name}\b", line) for line in lines)


def _log2(node: Node) -> Node:
    return call("*", node, Const(LOG2_E, "float"))


def _varies(node: Node) -> bool:
    return level(node) == ELEMENT


def _split(total: Sum, signs: Signs) -> tuple[Node, Sum, frozenset[str]]:
    """The score as a positive uniform factor times the rest, and the params that the sign of the factor rests on."""
    if len(total.terms) == 1 and total.const == zero("float"):
        core, factor = total.terms[0]
        proof = signs.positive(factor)
        if proof is not None and level(factor) <= UNIFORM:
            return factor, Sum(total.const, ((core, ONE),)), proof
    return ONE, total, frozenset()


def _positive_scale(scale: Node, params: Signs) -> tuple[frozenset[str] | None, tuple[Requirement, ...]]:
    """The params that a positive scale rests on, None without proof; and what it must be at a call, where it is a factor of the score."""
    proof, large = params.positive(scale), fold(Call(">=", (scale, Const(LEAST_SCALE, "float")), "bool"))
    if proof is None or large == FALSE:
        return None, ()
    message = f"scale is positive by default, and then at least {float32_text(LEAST_SCALE)}"
    return proof, () if large == TRUE else (Requirement(show(large), large, message),)


def _positive(param: str) -> Requirement:
    node = Call(">", (Name(param, "float"), Const(0.0, "float")), "bool")
    return Requirement(f"{param} > 0", node, f"{param} must be positive: the sign of the score rests on it")
