"""What templates print of a spec: each part of score and mask computed where it varies, and no further inside."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashgen.expr.bind import ELEMENT, KV_BEGIN, LOG2_E, RENAMED, UNIFORM, Binder, S, level
from flashgen.expr.conditions import visible
from flashgen.expr.division import divide_rows
from flashgen.expr.fold import call
from flashgen.expr.hoist import Hoist, Member
from flashgen.expr.instructions import Instructions
from flashgen.expr.linear import assemble, collect, normal, zero
from flashgen.expr.lower import Expressions
from flashgen.expr.nodes import Call, Const, Load, Name, Node
from flashgen.expr.signs import Requirement, Signs
from flashgen.expr.text import show

if TYPE_CHECKING:
    from flashgen.spec import Spec


@dataclass(frozen=True)
class Read:
    """Elements of a tensor beside each other along the keys, read before the score that they are for is there."""

    type: str
    name: str  # a member of At
    tensor: str  # as the text calls it
    address: str  # of the first, a member of Row
    by_row: bool  # whether it differs from query to query

    @property
    def second(self) -> str:
        """The elements of the second row of two: those of the first, unless rows differ."""
        return f"{self.tensor}.template two<PAIRED>(row[1].{self.address}, column, end)" if self.by_row else self.name


@dataclass(frozen=True)
class Holes:
    """What fills the holes of a skeleton.

    In scope everywhere: `p`. Of `uniform`, members of struct Variant: batch, head, kv_head. Of `row`, members of struct Row: what
    `uniform` declares, q_idx, kv_begin. Of `score` and `keep`, bodies of functions: what `uniform` declares, row, column; of the
    score also s, the raw q.k; of both, where something is read, at.
    """

    uniform: tuple[Member, ...]
    row: tuple[Member, ...]
    score: tuple[str, ...] | None  # None: linear in s, all of it in `outer`
    keep: tuple[str, ...]
    reads: tuple[Read, ...]
    keys: str  # from kv_begin to kv_len
    outer: str  # log2 units of one unit of the score
    requires: tuple[Requirement, ...]  # of the params, at each call
    sink: str | None  # a logit in log2 units, one more term in the sum of a row
    description_score: str
    description_mask: str
    instructions: Instructions  # of the score of an element, besides what makes exponents of it

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
        return sum(block_n // 2 if read.by_row else block_n // 4 for read in self.reads)


def holes(expressions: Expressions, spec: "Spec") -> Holes:
    """The holes of a spec's expressions.

    >>> from flashgen.expr import lower
    >>> from flashgen.spec import Spec
    >>> spec = Spec(head_dim=64, dtype="bfloat16", mask="causal", score="softcap * tanh(s / softcap)", params={"softcap": 50.0})
    >>> found = holes(lower(spec), spec)
    >>> found.score, found.keep, found.outer
    (('return ptx::tanh(inner * s);',), ('return column < row.end;',), 'factor')
    """
    params = Signs({p.name: frozenset([p.name]) for p in spec.params if p.default > 0})
    binder = Binder(spec, params.positive(expressions.scale))
    hoist = Hoist()

    def bind(node: Node) -> Node:
        return divide_rows(binder(node), binder.signs)

    if spec.softmax.normalized:
        factor, rest, proof = _split(bind(expressions.score), binder.signs)
        outer = hoist.text(call("*", factor, Const(LOG2_E, "float")), "factor", "log2 units of one unit of the score")
        score = None if rest == S else hoist.statements(rest)
    else:
        outer, proof, score = "1.0f", frozenset[str](), hoist.statements(assemble(collect(bind(expressions.score), _varies)))
    of_score = hoist.instructions
    sink = None
    if expressions.sink is not None:
        sink = hoist.text(call("*", bind(expressions.sink), Const(LOG2_E, "float")), "sink", "one more term in the sum, log2 units")
    keep = hoist.statements(normal(bind(visible(expressions.mask)), _varies))
    requires = {r.text: r for r in (*expressions.requires, *map(_positive, sorted(proof)))}
    reads = tuple(_read(hoist, address, name) for address, name in binder.reads.items())
    keys = hoist.member(call("-", RENAMED["kv_len"], KV_BEGIN), "keys", "from kv_begin to kv_len") if reads else ""
    uniform, row = hoist.members()
    if reads:
        paired = " && ".join(dict.fromkeys(f"{read.tensor}.paired(p.kv_len)" for read in reads))
        uniform = (*uniform, Member("bool", "paired", paired, "tensors can be read two elements at a time"))
    described = show(expressions.score), show(expressions.mask)
    return Holes(uniform, row, score, keep, reads, keys, outer, tuple(requires.values()), sink, *described, of_score)


def _read(hoist: Hoist, address: Load, name: Name) -> Read:
    _, _, called = name.name.partition(".")
    by_row = any(level(index) > UNIFORM for index in address.indices[:-1])
    _, _, member = hoist.member(address, called.removeprefix("arg_") + "_row").partition(".")
    return Read(name.type, called, address.tensor.removesuffix(".address"), member, by_row)


def _varies(node: Node) -> bool:
    return level(node) == ELEMENT


def _split(score: Node, signs: Signs) -> tuple[Node, Node, frozenset[str]]:
    """The score as a positive uniform factor times the rest, and the params that the sign of the factor rests on."""
    total = collect(score, _varies)
    if len(total.terms) == 1 and total.const == zero("float"):
        core, factor = total.terms[0]
        proof = signs.positive(factor)
        if proof is not None and level(factor) <= UNIFORM:
            return factor, core, proof
    return Const(1.0, "float"), assemble(total), frozenset()


def _positive(param: str) -> Requirement:
    node = Call(">", (Name(param, "float"), Const(0.0, "float")), "bool")
    return Requirement(f"{param} > 0", node, f"{param} must be positive: the sign of the score rests on it")
