"""The layouts: which axis of q, k, v and o is which. A layout is a row here, and nothing else knows what its name means."""

from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

T = TypeVar("T")

ROWS_FIRST, HEADS_FIRST = "bshd", "bhsd"  # as kernels address arrays, and as they are computed with on the host
LETTERS = "b are sequences, s are positions, h are heads, d are columns"


@dataclass(frozen=True)
class AxisOrder:
    """A layout: the axes of an array, outermost first, each by its letter."""

    name: str
    axes: str

    def arranged(self, *, b: T, s: T, h: T, d: T) -> tuple[T, ...]:
        """The values given for the axes, in the order of the axes.

        >>> axis_order("bhsd").arranged(b=1, s=128, h=8, d=64)
        (1, 8, 128, 64)
        """
        of = {"b": b, "s": s, "h": h, "d": d}
        return tuple(of[axis] for axis in self.axes)

    def axis(self, letter: str) -> int:
        """The place of an axis."""
        return self.axes.index(letter)

    @cached_property
    def to_rows_first(self) -> tuple[int, ...]:
        """The transposition of an array to [B, S, H, D]."""
        return _transposition(self.axes, ROWS_FIRST)

    @cached_property
    def from_rows_first(self) -> tuple[int, ...]:
        """The transposition of [B, S, H, D] to this layout."""
        return _transposition(ROWS_FIRST, self.axes)

    @cached_property
    def to_heads_first(self) -> tuple[int, ...]:
        """The transposition of an array to [B, H, S, D]."""
        return _transposition(self.axes, HEADS_FIRST)

    @cached_property
    def from_heads_first(self) -> tuple[int, ...]:
        """The transposition of [B, H, S, D] to this layout."""
        return _transposition(HEADS_FIRST, self.axes)


LAYOUTS = {
    row.name: row
    for row in (
        AxisOrder("bshd", axes="bshd"),
        AxisOrder("bhsd", axes="bhsd"),
    )
}
DEFAULT = "bshd"


def axis_order(name: str) -> AxisOrder:
    """The row of a layout."""
    return LAYOUTS[name]


def _transposition(axes: str, wanted: str) -> tuple[int, ...]:
    return tuple(axes.index(axis) for axis in wanted)
