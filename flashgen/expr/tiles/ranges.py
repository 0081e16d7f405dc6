"""A mask as ranges of tiles: which key tiles a query tile loads, and in which of them the mask is tested; the same of query tiles for a key
tile.

No table and no pass over memory: a few integers, computed for each tile, bound a few loops.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from flashgen.expr.language.nodes import INDEX_NAMES, Node
from flashgen.expr.prove.affine import MAX_LENGTH, Int, named, param, parts, select, smallest
from flashgen.expr.prove.integers import divisors, intervals
from flashgen.expr.prove.intervals import BLOCK_M, BLOCK_N, K_BEGIN, KEYS, KV_LEN, Q_BEGIN, Q_LEN, ROWS, ZERO, Facts, Interval, Side
from flashgen.expr.tiles.cuda import Printer, RangeText, number
from flashgen.expr.tiles.extents import Pairing
from flashgen.expr.tiles.extents import text as pairing_text
from flashgen.expr.tiles.solve import Solver
from flashgen.expr.tiles.spans import MAX_STRIPS, Combiner, Span, Strip
from flashgen.spec.geometry import DENSE, Geometry

if TYPE_CHECKING:
    from flashgen.spec import Param, Tensor

LASTS = {"q_last": smallest(Q_BEGIN + BLOCK_M, Q_LEN) - 1, "k_last": smallest(K_BEGIN + BLOCK_N, KV_LEN) - 1}
EMPTY, PARTIAL, FULL = range(3)


@dataclass(frozen=True)
class Loop:
    """Tiles [begin, end); `masked` tells whether the mask is tested inside."""

    begin: Int
    end: Int
    masked: bool


@dataclass(frozen=True)
class TileRanges:
    """Straight-line code (`steps`, in order) and the loops over tiles that it bounds, ascending and disjoint; other tiles are empty."""

    side: ClassVar[Side]

    block_m: int
    block_n: int
    steps: tuple[tuple[str, Int], ...]
    loops: tuple[Loop, ...]
    reasons: tuple[str, ...]  # what was lost, and why
    requires: tuple[str, ...]  # params that the host must check to be at least 1
    tensors: "tuple[Tensor, ...]"
    pairings: tuple[Pairing, ...] = ()  # what kernels before the attention find out
    geometry: Geometry = DENSE  # whose own lengths are in scope of the text by name
    known: tuple[tuple[str, Interval], ...] = ()  # the intervals of params, by their names in forms

    @property
    def uniform(self) -> bool:
        """True if every tile of the other index has as many tiles, whichever it is, and whatever its head and batch."""
        varying = (str(self.side.first), str(self.side.last), "b", "h", "hk")
        return not self.pairings and _live(self.steps, self.loops).isdisjoint(varying)

    @property
    def tail(self) -> bool:
        """True if only the last tile is ever tested, alike for all tiles of the other index: the sequence ends inside it."""
        return self.uniform and [loop.masked for loop in self.loops] == [False, True]

    @property
    def contiguous(self) -> bool:
        """True if each loop begins where the one before it ends."""
        return all(left.end == right.begin for left, right in pairwise(self.loops))

    def evaluate(self, q_len: int, kv_len: int, values: Mapping[str, Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Begin and end of every loop: [loops, tiles of the other index]. `values` holds b, h, hk, params and tensors by name, those that
        are read.

        Raises ValueError if a parameter that divides is not positive.
        """
        for name in self.requires:
            if values[name] < 1:
                raise ValueError(f"{name} is {values[name]}, but it divides: give at least 1")
        length, block = (q_len, self.block_m) if self.side is KEYS else (kv_len, self.block_n)
        first = np.arange(0, length, block, dtype=np.int64)
        known = {str(self.side.first): first, "q_len": q_len, "kv_len": kv_len, "BLOCK_M": self.block_m, "BLOCK_N": self.block_n}
        lookup = {name if name in INDEX_NAMES else param(name): value for name, value in values.items()} | known
        for pairing in self.pairings:
            lookup |= pairing.evaluate(q_len, kv_len, self.block_m, self.block_n, lookup)
        for name, value in self.steps:
            lookup[name] = number(value, lookup)
        shape = (2, len(self.loops), len(first))
        bounds = np.empty(shape, np.int64)
        for i, loop in enumerate(self.loops):
            bounds[0, i], bounds[1, i] = number(loop.begin, lookup), number(loop.end, lookup)
        return bounds[0], bounds[1]

    def cuda(self) -> RangeText:
        """The ranges as text; in scope: p, batch, head, kv_head, BLOCK_N, floor_div, floor_mod, min, max; q_begin, rows and pairings, or of
        query tiles for a key tile k_begin and BLOCK_M."""
        facts = Facts(self.block_m, self.block_n, dict(self.known), self.side)
        facts.known |= dict.fromkeys(("q_idx", "kv_idx", "keys after"), (0, MAX_LENGTH))
        of_pairings = Facts(self.block_m, self.block_n, dict(self.known))
        of_pairings.known |= facts.known
        of_pairings.untangled[0]["kv_len"] = named("kv_idx") + 1 + named("keys after")
        for pairing in self.pairings:
            pairing.strip(facts)
        printer = Printer(facts, self.tensors, self.geometry)
        pairings = pairing_text(self.pairings, Printer(of_pairings, self.tensors, self.geometry))
        lines = []
        for name, value in self.steps:
            lines.append(f"const int {name} = {printer.narrow(value)};")
            if name not in LASTS:
                facts.let(name, value)
        loops = tuple((printer.narrow(loop.begin), printer.narrow(loop.end), loop.masked) for loop in self.loops)
        return RangeText(lines=tuple(lines), loops=loops, pairings=pairings, contiguous=self.contiguous)

    def classes(self, q_len: int, kv_len: int, values: Mapping[str, Any]) -> NDArray[np.int8]:
        """0 never loaded, 1 masked, 2 not masked: [tiles of the other index, tiles]."""
        return next(self.bands(q_len, kv_len, values, max(1, q_len, kv_len)))

    def bands(self, q_len: int, kv_len: int, values: Mapping[str, Any], rows: int) -> Iterator[NDArray[np.int8]]:
        """The classes of some tiles of the other index at a time, band after band: of long sequences all are larger than a memory."""
        columns = -(-kv_len // self.block_n) if self.side is KEYS else -(-q_len // self.block_m)
        begin, end = np.clip(self.evaluate(q_len, kv_len, values), 0, columns)
        for top in range(0, max(1, begin.shape[1]), rows):
            bounds = begin[:, top : top + rows].T.tolist(), end[:, top : top + rows].T.tolist()
            result = np.full((len(bounds[0]), columns), EMPTY, np.int8)
            for line, firsts, lasts in zip(result, *bounds, strict=True):
                for loop, first, last in zip(self.loops, firsts, lasts, strict=True):
                    line[first:last] = PARTIAL if loop.masked else FULL
            yield result

    def share(self, q_len: int, kv_len: int, values: Mapping[str, Any]) -> dict[str, float]:
        """The shares of tiles that are empty, partial and full."""
        counts = np.bincount(self.classes(q_len, kv_len, values).ravel(), minlength=3)
        return dict(zip(("empty", "partial", "full"), (counts / max(1, counts.sum())).tolist(), strict=True))

    def to_json(self) -> dict[str, Any]:
        """Steps and loops as text, what was lost, and what the host checks."""
        loops = [{"begin": str(loop.begin), "end": str(loop.end), "masked": loop.masked} for loop in self.loops]
        steps = {name: str(value) for name, value in self.steps}
        pairings = [{"name": p.name} | dict(zip(("key", "op", "row"), map(str, p.told), strict=True)) for p in self.pairings]
        return {"pairings": pairings, "steps": steps, "loops": loops, "reasons": list(self.reasons), "requires": list(self.requires)}


@dataclass(frozen=True)
class KeyRanges(TileRanges):
    """The key tiles of a query tile. In a loop that is not masked all keys are below kv_len and visible to every row below q_len."""

    side = KEYS


@dataclass(frozen=True)
class RowRanges(TileRanges):
    """The query tiles of a key tile. In a loop that is not masked all rows and keys are below their lengths, and every pair is visible."""

    side = ROWS


Found = TypeVar("Found", bound=TileRanges)


def analyse(
    mask: Node, block_m: int, block_n: int, tensors: "Sequence[Tensor]" = (), geometry: Geometry = DENSE, params: "Sequence[Param]" = ()
) -> KeyRanges:
    """The key tiles, of block_n keys, that a tile of block_m query rows loads; `tensors` and `params` are those that the mask may read.

    >>> from flashgen.expr.language.nodes import Call, Name
    >>> causal = Call("<=", (Name("kv_idx", "int"), Name("q_idx", "int")), "bool")
    >>> print(*analyse(causal, 128, 64).cuda().lines, sep="\\n")
    const int q_last = min(q_begin + rows, p.q_len) - 1;
    const int keys_end = min(p.kv_len, q_last + 1);
    const int full_end = min(p.kv_len, q_begin + 1);
    const int last = (keys_end + BLOCK_N - 1) / BLOCK_N;
    const int tail = full_end / BLOCK_N;
    """
    return _ranges(KeyRanges, mask, block_m, block_n, tensors, geometry, params)


def row_ranges(
    mask: Node, block_m: int, block_n: int, tensors: "Sequence[Tensor]" = (), geometry: Geometry = DENSE, params: "Sequence[Param]" = ()
) -> RowRanges:
    """The query tiles, of block_m rows, that meet a tile of block_n keys; arguments as of `analyse`.

    >>> from flashgen.expr.language.nodes import Call, Name
    >>> causal = Call("<=", (Name("kv_idx", "int"), Name("q_idx", "int")), "bool")
    >>> found = row_ranges(causal, 64, 128).cuda()
    >>> found.lines[2], found.loops
    ('const int first = k_begin / BLOCK_M;', (('first', 'body', True), ('body', 'tail', False), ('tail', 'last', True)))
    """
    return _ranges(RowRanges, mask, block_m, block_n, tensors, geometry, params)


def _ranges(
    kind: type[Found], mask: Node, block_m: int, block_n: int, tensors: "Sequence[Tensor]", geometry: Geometry, params: "Sequence[Param]"
) -> Found:
    known, side = intervals(params, mask), kind.side
    facts = Facts(block_m, block_n, known, side)
    combiner = Combiner(facts)
    solver = Solver(combiner, paired=not geometry.own)
    strips = solver.strips(mask)
    if side is ROWS:  # no row sees the keys beyond the last
        strips = combiner.every([strips, [Strip(combiner.all, solver.guard(K_BEGIN + BLOCK_N - KV_LEN))]])
    strips = combiner.condense(strips, MAX_STRIPS)
    loops = tuple(_lay_out(facts, *combiner.ordered(strips)))
    steps = ((str(side.last), LASTS[str(side.last)]), *facts.meanings.items())
    live = _live(steps, loops)
    kept = tuple(step for step in steps if step[0] in live)
    pairings = tuple(p for p in solver.pairings if not live.isdisjoint(p.members))
    return kind(
        block_m=block_m,
        block_n=block_n,
        steps=kept,
        loops=loops,
        reasons=tuple(combiner.reasons),
        requires=tuple(name for name in divisors(mask) if name not in {p.name for p in params if p.interval[0] > 0}),
        tensors=tuple(tensors),
        pairings=pairings,
        geometry=geometry,
        known=tuple(known.items()),
    )


def _live(steps: Sequence[tuple[str, Int]], loops: Sequence[Loop]) -> frozenset[str]:
    """The names that the loops depend on."""
    live = frozenset[str]().union(*(loop.begin.names | loop.end.names for loop in loops))
    for name, value in reversed(steps):
        if name in live:
            live |= value.names
    return live


def _lay_out(facts: Facts, strips: list[Strip], in_order: bool) -> list[Loop]:
    """The loops of all strips, from left to right: masked head, unmasked body, masked tail. Each begins where the one before it stopped."""
    loops, cursor = [], ZERO
    for i, ((begin, end, full_begin, full_end), regular) in enumerate(_positions(facts, strips, in_order)):
        suffix = f"_{i}" if len(strips) > 1 else ""
        first = facts.let(f"first{suffix}", facts.largest(cursor, begin // facts.side.block))
        # Rounding begin down and end up would make a tile of an empty span.
        last = _tiles(facts, end) if regular else select(end - begin, first, _tiles(facts, end))
        last = facts.let(f"last{suffix}", facts.largest(first, last) if cursor != ZERO else last)
        body = tail = first
        if full_end != ZERO:
            body = facts.let(f"body{suffix}", facts.smallest(last, facts.largest(first, _tiles(facts, full_begin))))
            tail = facts.let(f"tail{suffix}", facts.smallest(last, facts.largest(body, full_end // facts.side.block)))
        for a, b, masked in ((first, body, True), (body, tail, False), (tail, last, True)):
            if not facts.nonnegative(a - b):
                loops.append(Loop(a, b, masked))
        cursor = last
    return loops


def _tiles(facts: Facts, positions: Int) -> Int:
    return ZERO if positions == ZERO else (positions + facts.side.block - 1) // facts.side.block


def _positions(facts: Facts, strips: list[Strip], in_order: bool) -> list[tuple[list[Int], bool]]:
    """For every strip, ordered by begin: begin and end of its positions and of the certain ones, and true if begin < end or both are 0."""
    labels = (f"{facts.side.along}_begin", f"{facts.side.along}_end", "full_begin", "full_end")
    rows: list[list[Int]] = []
    for i, strip in enumerate(strips):
        suffix = f"_{i}" if len(strips) > 1 else ""
        bounds = (*_clip(facts, strip.may), *_clip(facts, strip.must))
        rows.append([facts.let(f"{label}{suffix}", bound) for label, bound in zip(labels, bounds, strict=True)])
    pairs = list(combinations(range(len(rows)), 2))
    for i, j in () if in_order else pairs:
        late = rows[i][0] - rows[j][0]
        for k, label in enumerate(labels):
            x, y = rows[i][k], rows[j][k]
            rows[i][k] = facts.let(f"{label}_{i}{j}_low", select(late, x, y))
            rows[j][k] = facts.let(f"{label}_{i}{j}_high", select(late, y, x))
    for i, j in pairs:
        end, next_begin, next_end = rows[i][3], *rows[j][2:]
        if ZERO not in (end, next_end):  # a tile across two strips is full when their certain keys meet in it
            rows[i][3] = facts.let(f"full_end_{i}{j}", select(next_begin - end, facts.largest(end, next_end), end))
    spans = [strip.may for strip in strips]
    regular = [all(facts.nonnegative(span.end - x - 1) for x in parts("max", span.begin) if x != ZERO) for span in spans]
    return list(zip(rows, regular if in_order else [all(regular)] * len(rows), strict=True))


def _clip(facts: Facts, span: Span) -> tuple[Int, Int]:
    """Inside [0, length], so that what follows is 32-bit."""
    begin = span.begin if facts.extent(span.begin)[1] <= MAX_LENGTH else facts.smallest(span.begin, facts.side.length)
    return begin, facts.largest(ZERO, span.end)
