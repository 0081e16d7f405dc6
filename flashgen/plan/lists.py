"""Decides whether key tiles are listed before the attention: as a call says, or where looking at each pair of a mask pays."""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from flashgen.expr import analyse, lower
from flashgen.expr.holes.parts import MaskHole
from flashgen.expr.holes.runs import RUN_KEYS
from flashgen.expr.language.nodes import Call, Load, Node, names, walk
from flashgen.expr.tiles.lists import looked_at
from flashgen.expr.tiles.ranges import EMPTY, TileRanges
from flashgen.plan.costs.model import of_arch
from flashgen.plan.kernel import Listed
from flashgen.plan.strategy import Drafting, Request
from flashgen.spec import Spec

COSTS = "lists"  # the table of its numbers in flashgen.plan.costs
SAMPLE = 128, 64  # queries and keys of a tile, where a mask is looked at while planning
BANDS = 6  # of query tiles that are looked at
BIT_KEYS = (16, 32, 64, 128, 256)  # of a tile, whose bits one read brings
HEADS, HEADS_LOOKED_AT = {"h", "hk"}, 4  # where a mask reads a head, so many


def listed(request: Request, strategy: Drafting, ranges: TileRanges, length: int) -> Listed:
    """The source of the lists of key tiles, for calls of this class of lengths; `ranges`: of the mask."""
    spec, known = request.spec, of_arch(request.arch, COSTS)
    if spec.blocks:
        return "call"
    mask = lower(spec).mask
    if not strategy.walks_lists or spec.geometry.own or request.demand.rows or length < known["length"] or not loses(mask, ranges):
        return ""
    return "mask" if left_out(spec, length) >= known["gain_of_heads" if names(mask) & HEADS else "gain"] else ""


def bits_together(mask: MaskHole) -> tuple[int, ...]:
    """The key tiles of a mask of which a thread has bits; none: of any number of keys."""
    if mask.runs:
        return RUN_KEYS
    return BIT_KEYS[1:] if mask.bits else BIT_KEYS if mask.listed else ()


def by_bits(spec: Spec, mask: Node) -> bool:
    """True if an attention whose key tiles are listed because pairs of a mask are seen reads of each pair a bit: the heads share them."""
    return not names(mask) & HEADS and (spec.block.n or BIT_KEYS[1]) in BIT_KEYS[1:]


def loses(mask: Node, ranges: TileRanges) -> bool:
    """True if the ranges of a mask may hold tiles that nobody sees: as they say, or as extents are wide where other keys are seen too, or
    what tensors hold is compared by size, so that keys beside each other need not be seen together."""
    by_size = any(p.op not in ("==", "!=") and p.known.terms for p in ranges.pairings)  # not with a number, as flags of padded keys are
    return bool(ranges.reasons) or by_size or (bool(ranges.pairings) and _either(mask))


def _either(node: Node, negated: bool = False) -> bool:
    """True if a mask, or what is not it, holds where one of several conditions does, however it is written."""
    match node:
        case Call("~", (inner,)):
            return _either(inner, not negated)
        case Call("&" | "|" as op, parts):
            return (op == "&") == negated or any(_either(part, negated) for part in parts)
        case Call("where", _, "bool"):
            return True
    return False


@lru_cache(256)
def left_out(spec: Spec, length: int) -> float:
    """The share of the tiles in a mask's ranges that no row sees, of some query tiles. What tensors hold is not known: then it is 1."""
    mask, (m, n) = lower(spec).mask, SAMPLE
    if any(isinstance(node, Load) for node in walk(mask)):
        return 1.0
    known = {"b": 0, **{p.name: p.default for p in spec.params}, "q_len": length, "kv_len": length}
    ranges, taken, left = analyse(mask, m, n, geometry=spec.geometry, params=spec.params), 0, 0
    for h in range(HEADS_LOOKED_AT if names(mask) & HEADS else 1):
        values = {**known, "h": h, "hk": h}
        classes = ranges.classes(length, length, values)
        for top in np.linspace(0, len(classes) - 1, BANDS).round().astype(int).tolist():
            band = classes[top : top + 1]
            taken += int(np.count_nonzero(band))
            left += int(np.count_nonzero((looked_at(mask, band, SAMPLE, values, top) == EMPTY) & (band != EMPTY)))
    return left / max(1, taken)


def reasons(spec: Spec, chosen: Listed, length: int) -> Iterator[tuple[str, str]]:
    """Why key tiles are listed."""
    if spec.blocks:
        yield "lists", f"{spec.blocks.text}: a small kernel before the attention makes of each a bit a key tile, of those in the ranges"
    elif chosen:
        share = left_out(spec, length)
        many = "how many nobody sees is in tensors" if share == 1 else f"nobody sees {share:.0%} of them at length {length}"
        yield (
            "lists",
            f"ranges do not tell which tiles are seen: a kernel before the attention looks at each pair; {many}",
        )
