"""Comparisons of what tensors hold at a row with what they hold at a key, as those of documents: ranges from extents over tiles.

What a tensor holds is not known when the ranges of a query tile are computed, but the least and the greatest value over a tile are soon
found: kernels that run before the attention find them, and from them the keys that a query tile may see and those that it must see. The
same of rows and key tiles, for a backward.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flashgen.expr.prove.affine import MAX_LENGTH, Int, named, param
from flashgen.expr.prove.intervals import KEYS, Facts, Side
from flashgen.expr.tiles.cuda import PairingText, Printer, number
from flashgen.expr.tiles.spans import Span, Strip

Bounds = tuple[NDArray[np.int64], NDArray[np.int64]]
FIELDS = ("x", "y", "z", "w")  # of an int4: begin and end of what may be seen, begin and end of what must be
Op = Literal["<", "<=", ">", ">=", "==", "!="]
SWAPPED: Mapping[Op, Op] = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}  # of sides
_PAIRS_AT_ONCE = 1 << 24  # of a tile of rows and a tile of keys, to bound memory


@dataclass(frozen=True)
class Pairing:
    """unknown `op` known. Of key and row the first depends on the side's unknown alone, the second on the other one alone."""

    name: str  # of its int4 in emitted text
    op: Op
    unknown: Int
    known: Int
    side: Side = KEYS

    @property
    def members(self) -> tuple[str, ...]:
        """The names in forms of the members of its int4."""
        return tuple(f"{self.name}.{field}" for field in FIELDS)

    def strip(self, facts: Facts) -> Strip:
        """Its keys, or rows, by the names of what the kernels before the attention find."""
        facts.known |= dict.fromkeys(self.members, (0, MAX_LENGTH))
        begin, end, full_begin, full_end = map(named, self.members)
        return Strip(Span(begin, end), Span(full_begin, full_end))

    @property
    def told(self) -> tuple[Int, Op, Int]:
        """The comparison as key, operator, row."""
        return (self.unknown, self.op, self.known) if self.side is KEYS else (self.known, SWAPPED[self.op], self.unknown)

    @property
    def text(self) -> str:
        """The comparison for people, more or less as in the spec."""
        return "{} {} {}".format(*self.told).replace(param(""), "")

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes, of batch and heads, along which the extents differ."""
        read = self.unknown.names | self.known.names
        return (*(["batch"] if "b" in read else []), *(["heads"] if read & {"h", "hk"} else []))

    def evaluate(self, q_len: int, kv_len: int, block_m: int, block_n: int, values: Mapping[str, Any]) -> dict[str, NDArray[np.int64]]:
        """The numbers that the kernels find, by name: [tiles of the known index]. `values` as `number` takes them."""
        sizes = {"q_idx": (q_len, block_m), "kv_idx": (kv_len, block_n)}
        (low, high), (least, most) = (
            _extents(number(part, {**values, name: np.arange(sizes[name][0])}), *sizes[name])
            for part, name in ((self.known, self.side.known), (self.unknown, self.side.unknown))
        )
        found = np.empty((len(FIELDS), len(low)), np.int64)
        together = max(1, _PAIRS_AT_ONCE // max(1, len(least)))
        for top in range(0, len(low), together):
            rows = slice(top, top + together)
            may, must = self._compare(low[rows, None], high[rows, None], least, most)
            found[:, rows] = (*_first_and_last(may), *_first_range(must))
        length, block = sizes[self.side.unknown]
        return {name: np.minimum(x * block, length) for name, x in zip(self.members, found, strict=True)}

    def _compare(self, low: Any, high: Any, least: Any, most: Any) -> tuple[Any, Any]:
        """True if some pair may hold, and true if all must, for tiles of the known and the unknown whose values lie between these."""
        match self.op:
            case "<" | "<=":
                less = np.less if self.op == "<" else np.less_equal
                return less(least, high), less(most, low)
            case ">" | ">=":
                more = np.greater if self.op == ">" else np.greater_equal
                return more(most, low), more(least, high)
            case "==":
                return (least <= high) & (low <= most), (least == most) & (low == high) & (least == low)
        return (least < most) | (low < high) | (least != low), (most < low) | (high < least)  # !=


def _extents(x: Any, length: int, block: int) -> Bounds:
    """The least and the greatest over each tile."""
    x = np.broadcast_to(np.asarray(x, np.int64), (length,))
    starts = np.arange(0, length, block)
    if not length:
        return x, x
    return np.minimum.reduceat(x, starts), np.maximum.reduceat(x, starts)


def _first_and_last(flags: NDArray[np.bool_]) -> Bounds:
    """Begin and end of what holds every flag of a row; 0 and 0 where there is none."""
    some, count = flags.any(1), flags.shape[1]
    if not count:
        return np.zeros(len(flags), np.int64), np.zeros(len(flags), np.int64)
    return np.where(some, flags.argmax(1), 0), np.where(some, count - flags[:, ::-1].argmax(1), 0)


def _first_range(flags: NDArray[np.bool_]) -> Bounds:
    """Begin and end of the first flags of a row that follow each other."""
    begin, _ = _first_and_last(flags)
    gaps = ~flags & (np.arange(flags.shape[1]) > begin[:, None])
    end = np.where(gaps.any(1), gaps.argmax(1), flags.shape[1]) if flags.shape[1] else begin
    return begin, np.where(flags.any(1), end, 0)


TESTS = {  # of an extent of keys, or of rows
    **{op: (f"{{0}}.x {op} high", f"{{0}}.y {op} low") for op in ("<", "<=")},
    **{op: (f"{{0}}.y {op} low", f"{{0}}.x {op} high") for op in (">", ">=")},
    "==": ("{0}.x <= high && low <= {0}.y", "{0}.x == {0}.y && low == high && {0}.x == low"),
    "!=": ("{0}.x < {0}.y || low < high || {0}.x != low", "{0}.y < low || high < {0}.x"),
}


def text(pairings: Sequence[Pairing], printer: Printer) -> tuple[PairingText, ...]:
    """The pairings as CUDA text."""
    return tuple(_text(pairing, printer) for pairing in pairings)


def _text(pairing: Pairing, printer: Printer) -> PairingText:
    may, must = (test.format("key" if pairing.side is KEYS else "row") for test in TESTS[pairing.op])
    return PairingText(
        name=pairing.name,
        unknown=printer.sum(pairing.unknown)[0],
        known=printer.sum(pairing.known)[0],
        may=may,
        must=must,
        axes=pairing.axes,
        meaning=pairing.text,
    )
