"""The keys that some query of a call may see by position alone; others lie beyond an end, before a window, or are switched off by a tensor.

A key that every query's mask hides has no weight, but 0 * NaN is NaN: so what such keys hold is kept out of products altogether. It is the
question of the key ranges, asked of all queries at once, and conditions on the key that have no range are asked key by key.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flashgen.expr.holes.bind import Binder
from flashgen.expr.holes.cuda import cuda
from flashgen.expr.holes.widths import widened
from flashgen.expr.language.deciding import approximate
from flashgen.expr.language.fold import TRUE, call
from flashgen.expr.language.nodes import INDEX_NAMES, Load, Name, Node, names, rebuild
from flashgen.expr.meaning.evaluate import evaluate
from flashgen.expr.prove.affine import MAX_LENGTH, Int, param, substitute
from flashgen.expr.prove.integers import Integers, intervals, of_kernel
from flashgen.expr.prove.intervals import KV_LEN, Q_LEN, ZERO, Facts, Interval, Known
from flashgen.expr.tiles.conditions import parts, reads_key, solve
from flashgen.expr.tiles.cuda import Printer, number
from flashgen.expr.tiles.extents import Op
from flashgen.expr.tiles.solve import NoRuleError, Solver
from flashgen.expr.tiles.spans import MAX_STRIPS, NONE, Combiner, Span, Strip

if TYPE_CHECKING:
    from flashgen.spec import Spec

EVERY_QUERY = {"q_begin": ZERO, "q_last": Q_LEN - 1}


@dataclass(frozen=True)
class Reach:
    """The keys of some spans, which `flags` and `steps` lead to, where `condition` holds as well."""

    spans: tuple[Span, ...]
    flags: tuple[tuple[str, Node], ...]  # 0 or 1: conditions of the call, the sequence and the heads that no form says
    steps: tuple[tuple[str, Int], ...]
    condition: Node  # of the key, of the sequence and the heads
    known: tuple[tuple[str, Interval], ...]  # the intervals of params, by their names in forms
    spec: "Spec"

    @property
    def by_head(self) -> bool:
        """True if query heads of one key/value head differ."""
        read = frozenset[str]().union(
            *(span.begin.names | span.end.names for span in self.spans), *(value.names for _, value in self.steps)
        )
        return "h" in read.union(names(self.condition), *(names(flag) for _, flag in self.flags))

    @property
    def conditional(self) -> bool:
        """True if keys are asked one by one."""
        return self.condition != TRUE

    def evaluate(self, q_len: int, kv_len: int, values: Mapping[str, Any]) -> NDArray[np.bool_]:
        """For each key, true if some query may see it: [kv_len]. `values` holds b, h, hk, params and tensors by name."""
        known = {name if name in INDEX_NAMES else param(name): value for name, value in values.items()} | {"q_len": q_len, "kv_len": kv_len}
        for name, flag in self.flags:
            known[name] = int(np.all(evaluate(flag, {**values, "q_len": q_len, "kv_len": kv_len})))
        for name, value in self.steps:
            known[name] = number(value, known)
        keys = np.arange(kv_len)
        within = [(number(span.begin, known) <= keys) & (keys < number(span.end, known)) for span in self.spans]
        seen = evaluate(self.condition, {**values, "q_len": q_len, "kv_len": kv_len, "kv_idx": keys}) if kv_len else True
        return np.broadcast_to(np.logical_or.reduce(within, initial=False) & seen, (kv_len,))

    @cached_property
    def text(self) -> "ReachText":
        """The reach as text for a kernel; in scope: p, batch, head, kv_head; for the condition, kv_idx."""
        facts = _facts(dict(self.known))
        printer = Printer(facts, self.spec.tensors, self.spec.geometry)
        lines = []
        for name, flag in self.flags:
            lines.append(f"const int {name} = {self._cuda(flag)};")
            facts.known[name] = (0, 1)
        for name, value in self.steps:
            lines.append(f"const int {name} = {printer.narrow(value)};")
            facts.let(name, value)
        spans = tuple((printer.narrow(_inside(facts, span.begin)), printer.narrow(_inside(facts, span.end))) for span in self.spans)
        return ReachText(tuple(lines), spans, self._cuda(self.condition) if self.conditional else "")

    def _cuda(self, condition: Node) -> str:
        return cuda(_wide(_OfKey(self.spec)(condition), Integers(of_kernel, dict(self.known))))


@dataclass(frozen=True)
class ReachText:
    """Statements, in order, begin and end of each span, and what else must hold of a key, if anything."""

    lines: tuple[str, ...]
    spans: tuple[tuple[str, str], ...]
    condition: str


@lru_cache(256)
def reach(mask: Node, spec: "Spec", beyond: bool = False) -> Reach | None:
    """The keys that some query of a call may see; None where that is every key of every call.

    `beyond`: where sequences have a kv_len of their own, the keys from there on are asked for too.

    >>> from flashgen.expr import lower
    >>> from flashgen.spec import Spec
    >>> spec = Spec(head_dim=64, dtype="bfloat16", mask="causal & (kv_idx < n)", params={"n": 7})
    >>> found = reach(lower(spec).mask, spec)
    >>> [str(span.end) for span in found.spans], reach(lower(Spec(head_dim=64, dtype="bfloat16", mask="causal")).mask, spec)
    (['min(kv_len, p.arg_n)'], None)
    """
    known = intervals(spec.params, mask)
    flags: dict[Node, str] = {}
    solver = _WholeCall(Combiner(_facts(known)), flags)
    found = solver.combiner.condense(solver.strips(mask), MAX_STRIPS)
    condition: Node = TRUE
    for part in parts("&", solve(mask, known)):
        # What is approximate may be decided otherwise where the mask is tested.
        if reads_key(part) and "q_idx" not in names(part) and not (approximate(part) or _solved(part, known)):
            condition = call("&", condition, part)
    facts = solver.facts
    spans = tuple(Span(*(substitute(end, EVERY_QUERY) for end in (strip.may.begin, strip.may.end))) for strip in found) or (NONE,)
    spans = tuple(Span(_from(facts, span.begin), _to(facts, span.end)) for span in spans)
    if condition == TRUE and any(span == Span(ZERO, KV_LEN) for span in spans) and not (beyond and "kv_len" in spec.geometry.own):
        return None
    steps = tuple((name, substitute(value, EVERY_QUERY)) for name, value in facts.meanings.items())
    live = frozenset[str]().union(*(span.begin.names | span.end.names for span in spans))
    for name, value in reversed(steps):
        live |= value.names if name in live else frozenset()
    read = tuple((name, flag) for flag, name in flags.items() if name in live)
    return Reach(
        spans=spans,
        flags=read,
        steps=tuple(step for step in steps if step[0] in live),
        condition=condition,
        known=tuple(known.items()),
        spec=spec,
    )


def _facts(known: Known) -> Facts:
    """The facts of one query tile that holds every query."""
    return Facts(MAX_LENGTH, 1, known)


def _from(facts: Facts, begin: Int) -> Int:
    return ZERO if facts.nonnegative(-begin) else facts.largest(ZERO, begin)


def _to(facts: Facts, end: Int) -> Int:
    return KV_LEN if facts.nonnegative(end - KV_LEN) else facts.smallest(KV_LEN, end)


def _inside(facts: Facts, bound: Int) -> Int:
    """A bound of keys between no key and all: 32 bits hold it."""
    return facts.largest(ZERO, facts.smallest(bound, KV_LEN))


def _solved(part: Node, known: Known) -> bool:
    """True if one span says it: of several, those that are joined may take in a key between them."""
    solver = _WholeCall(Combiner(_facts(known)))
    strips = solver.strips(part)
    return len(strips) <= 1 and all(strip.may == strip.must for strip in strips) and not solver.combiner.reasons


class _WholeCall(Solver):
    """A Solver for all queries at once, of which no value of a tensor at a query is known."""

    def found(self, op: Op, unknown: Int, known: Int) -> Strip:
        raise NoRuleError(f"{unknown} {op} {known} compares what tensors hold")


class _OfKey(Binder):
    """Takes a condition to a kernel where kv_idx is an argument."""

    def __init__(self, spec: "Spec"):
        super().__init__(spec, None, way="fast")
        self.signs = replace(self.signs, nonnegatives=self.signs.nonnegatives | {"kv_idx"})

    def __call__(self, node: Node, decided: bool = False) -> Node:
        match node:
            case Name("kv_idx"):
                return node
            case Load(tensor, indices, type):
                return Load(f"p.{self.tensors[tensor].argument}", self._inside(self.tensors[tensor], indices), type)
        return super().__call__(node, decided)


def _wide(node: Node, integers: Integers) -> Node:
    """The bound node with integers as wide as they must be."""
    return widened(rebuild(node, lambda child: _wide(child, integers)), node.type == "int" and integers.fits(node))
