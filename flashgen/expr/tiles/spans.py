"""Strips of keys: what the rows [q_begin, q_last] of a query tile see, as a few spans."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise, permutations, product

from flashgen.expr.prove.affine import Int, alone, param, select
from flashgen.expr.prove.intervals import ZERO, Facts

MAX_STRIPS = 3  # of a mask: each is up to three loops of the kernel
MOST_STRIPS = 4  # while combining
MAX_TEXT = 300  # characters of a bound


@dataclass(frozen=True)
class Span:
    """The keys [begin, end); none if begin >= end."""

    begin: Int
    end: Int

    @property
    def long(self) -> bool:
        """True if a bound of it has too long a text for a kernel."""
        return max(len(self.begin.text), len(self.end.text)) > MAX_TEXT


NONE = Span(ZERO, ZERO)


@dataclass(frozen=True)
class Strip:
    """The keys that some row may see, and among them keys that every row must see."""

    may: Span
    must: Span


class Combiner:
    """Intersects and unites lists of strips; `reasons` collects what is lost on the way.

    The union of what rows may see and the intersection of what they must see are exact. The other two are bounds: rows that each see
    nothing can look like a span (`(kv_idx <= q_idx) & (kv_idx > q_idx)`), and ranges that move with the row may cover a tile together.
    """

    def __init__(self, facts: Facts):
        self.facts = facts
        self.all = Span(ZERO, facts.side.length)
        self.reasons: list[str] = []

    def lose(self, reason: str) -> None:
        """Adds a reason why ranges say less than the mask, once."""
        reason = reason.replace(param(""), "")
        if reason not in self.reasons:
            self.reasons.append(reason)

    def some(self, found: Iterable[list[Strip]]) -> list[Strip]:
        """The strips of keys that at least one of several conditions allows."""
        return self.condense([strip for strips in found for strip in strips])

    def every(self, found: Iterable[list[Strip]]) -> list[Strip]:
        """The strips of keys that all of several conditions allow."""
        return reduce(lambda left, right: self.condense([self.meet(x, y) for x, y in product(left, right)]), found)

    def meet(self, x: Strip, y: Strip) -> Strip:
        """The intersection of two strips."""
        may, must = self.both(x.may, y.may), self.both(x.must, y.must)
        if may.long or must.long:
            self.lose("a bound is too long")
            return Strip(x.may, NONE)
        return Strip(may, must)

    def both(self, x: Span, y: Span) -> Span:
        """The intersection of two spans."""
        return Span(self.facts.largest(x.begin, y.begin), self.facts.smallest(x.end, y.end))

    def condense(self, strips: list[Strip], limit: int = MOST_STRIPS) -> list[Strip]:
        """Fewer strips with the same keys: those that share an edge are joined, and beyond `limit` neighbours with the gap between them."""
        done: list[Strip] = []
        for strip in strips:
            if self.empty(strip.may):
                continue
            new = Strip(strip.may, NONE if self.empty(strip.must) else strip.must)
            while pair := next(((old, joined) for old in done if (joined := self.join(old, new))), None):
                done.remove(pair[0])
                new = pair[1]
            done.append(new)
        if len(done) > limit:
            done = self.ordered(done)[0]
        while len(done) > limit:
            *done, x, y = done
            hull = Span(self.facts.smallest(x.may.begin, y.may.begin), self.facts.largest(x.may.end, y.may.end))
            done.append(Strip(self.all if hull.long else hull, x.must if y.must == NONE else y.must))
            self.lose("there are too many ranges, so the last ones are one, which also loads the tiles between them")
        return done

    def empty(self, span: Span) -> bool:
        """True if the span is proven to have no keys."""
        return self.facts.nonnegative(span.begin - span.end)

    def join(self, x: Strip, y: Strip) -> Strip | None:
        """One strip for both, where that is exact."""
        may, must = self.unite(x.may, y.may), self.unite(x.must, y.must)
        return Strip(may, must) if may and must and not (may.long or must.long) else None

    def unite(self, x: Span, y: Span) -> Span | None:
        """The keys of both, where they are a span: one is all or nothing, or an edge is shared."""
        for one, other in ((x, y), (y, x)):
            if other == NONE:
                return one
            if (switch := alone(other.end)) and switch.op == "select" and other.begin == ZERO and switch.args[1:] == (self.all.end, ZERO):
                return Span(select(switch.args[0], ZERO, one.begin), select(switch.args[0], self.all.end, one.end))
        if x.begin == y.begin:
            return Span(x.begin, self.facts.largest(x.end, y.end))
        return Span(self.facts.smallest(x.begin, y.begin), x.end) if x.end == y.end else None

    def ordered(self, strips: list[Strip]) -> tuple[list[Strip], bool]:
        """Sorted by begin as far as that can be proved, and whether it could."""

        def before(x: Strip, y: Strip) -> bool:
            return self.facts.nonnegative(y.may.begin - x.may.begin)

        for order in permutations(strips) if len(strips) <= MAX_STRIPS else ():
            if all(before(x, y) for x, y in pairwise(order)):
                return list(order), True
        return sorted(strips, key=lambda strip: sum(before(other, strip) for other in strips)), False
