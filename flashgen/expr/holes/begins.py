"""Sums of q.k that begin at terms of a score: where it is linear in s, at those of the key alone, or of the distance alone.

They are one number a key, or a distance, for all rows of a query tile. A warp computes these once a key tile and puts them into shared
memory; the products add to them, so that an element computes nothing for them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Literal, NamedTuple

from flashgen.expr.holes.bind import S, level
from flashgen.expr.holes.hoist import Body
from flashgen.expr.holes.passes import Kernel, passed
from flashgen.expr.holes.score import ONE, Score, separated
from flashgen.expr.language.fold import call, fold
from flashgen.expr.language.nodes import DISTANCE, ELEMENT, UNIFORM, Call, Const, Name, Node, names, rebuild
from flashgen.expr.language.text import show
from flashgen.expr.prove.linear import normal

if TYPE_CHECKING:
    from flashgen.spec import Spec

Along = Literal["keys", "distances"]
AWAY: Node = Name("anywhere else", "int")  # by which both positions move where a distance stays
_ZERO = Const(0, "int")
RENAMED: dict[Along, dict[str, Node]] = {
    "keys": {"kv_idx": Name("kv_idx", "int", ELEMENT)},
    "distances": {DISTANCE: Name("distance", "int", ELEMENT)},
}


@dataclass(frozen=True, kw_only=True)
class Begin:
    """The text of what the sums of q.k begin at."""

    along: Along
    text: str  # as in the language
    body: Body  # of `kv_idx`, or of `distance`, which is q_idx - kv_idx; in units of the score
    unit: str  # what one of these is of the raw q.k

    @property
    def told(self) -> str:
        """The text, and what its argument is."""
        return self.text if self.along == "keys" else f"{self.text}; distance: q_idx - kv_idx"

    @property
    def argument(self) -> str:
        """The name of what it is a function of."""
        return "kv_idx" if self.along == "keys" else "distance"


class Separation(NamedTuple):
    """A score as the sum of what is alike along keys or distances, and of the rest."""

    along: Along
    begin: Node
    rest: Node


def separations(score: Node) -> Iterator[Separation]:
    """The ways to take what sums can begin at from a score.

    >>> from flashgen.expr import lower
    >>> from flashgen.spec import Spec
    >>> tensors = {"g": {"shape": ["hq", "kv_len"], "dtype": "float32"}}
    >>> spec = Spec(head_dim=64, dtype="float16", score="s + g[h, q_idx] - g[h, kv_idx] - abs(q_idx - kv_idx)", tensors=tensors)
    >>> [(found.along, show(found.begin)) for found in separations(lower(spec).score)]
    [('distances', '-abs(q_idx - kv_idx)'), ('keys', '-g[h, kv_idx]')]
    """
    terms = [(negative, term, _along(term)) for negative, term in _terms(score)]
    for along in ("distances", "keys"):
        taken = [(negative, term) for negative, term, found in terms if found == along]
        rest = [(negative, term) for negative, term, found in terms if found != along]
        if taken and rest:
            yield Separation(along, _sum(taken), _sum(rest))


def begun(score: Node, spec: "Spec", kernel: Kernel) -> tuple[Score, Separation] | None:
    """The score as sums that begin somewhere leave it, and where; None where that does not make it linear, or it is linear already.

    `kernel`: of reads that nobody brings.
    """
    heads_by_row = level(kernel.binder(Name("h", "int"))) > UNIFORM  # rows are then not one query behind the other

    def of(node: Node) -> Score:
        return separated(passed(node, "score", kernel), spec, kernel.binder.signs, separate_rows=True)

    if not spec.softmax.normalized or of(score).rest == S:
        return None
    for found in separations(score):
        if heads_by_row and (found.along == "distances" or "h" in names(found.begin)):
            continue
        parts = of(found.rest)
        if parts.rest == S and parts.column_slope is None and parts.divisible and parts.row_bias is None:
            return parts, found
    return None


def begin_hole(found: Separation, factor: Node, kernel: Kernel) -> Begin:
    """The text of where sums begin. `kernel`: one that knows what it is alike along; `factor`: of the raw q.k in the score."""
    node = _of_distance(found.begin) if found.along == "distances" else found.begin
    body = kernel.hoist.apart().body(passed(node, "begin", kernel))
    unit = kernel.hoist.text(call("/", ONE, factor), "unit", "of the raw q.k, which one unit of the score is")
    return Begin(along=found.along, text=show(found.begin), body=body, unit=unit)


def _terms(node: Node, negative: bool = False) -> Iterator[tuple[bool, Node]]:
    """The terms of a sum of floats, each with whether it is taken away."""
    match node:
        case Call("+", (a, b), "float"):
            yield from (*_terms(a, negative), *_terms(b, negative))
        case Call("-", (a, b), "float"):
            yield from (*_terms(a, negative), *_terms(b, not negative))
        case Call("neg", (a,), "float"):
            yield from _terms(a, not negative)
        case _:
            yield negative, node


def _sum(terms: list[tuple[bool, Node]]) -> Node:
    (negative, first), *others = terms
    return reduce(lambda total, term: call("-" if term[0] else "+", total, term[1]), others, call("neg", first) if negative else first)


def _along(term: Node) -> Along | None:
    """The argument of a term, besides what is alike in a query tile."""
    read = names(term)
    if "kv_idx" not in read or "s" in read:
        return None
    if "q_idx" not in read:
        return "keys"
    moved = _replaced(term, {name: call("+", Name(name, "int"), AWAY) for name in ("q_idx", "kv_idx")})
    return "distances" if _normal(moved) == _normal(term) else None


def _normal(node: Node) -> Node:
    return normal(node, lambda each: not isinstance(each, Const))


def _of_distance(node: Node) -> Node:
    return fold(_replaced(node, {"q_idx": Name(DISTANCE, "int"), "kv_idx": _ZERO}))


def _replaced(node: Node, by: dict[str, Node]) -> Node:
    if isinstance(node, Name):
        return by.get(node.name, node)
    return rebuild(node, lambda child: _replaced(child, by))
