"""The layouts: which axis of q, k, v and o is which. A layout is a row here, and nothing else knows what its name means."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from numpy.typing import NDArray

T = TypeVar("T")

ROWS_FIRST, HEADS_FIRST = "bshd", "bhsd"  # as kernels address arrays, and as they are computed with on the host
LETTERS = "b are sequences, s are positions, t those of all sequences, h are heads, d are columns"


@dataclass(frozen=True)
class AxisOrder:
    """A layout: the axes of an array, outermost first, each by its letter. Without b, sequences lie one behind the other; who computes
    takes them all as one, and has an axis b of extent 1 in front (`expanded`)."""

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
        """The index of an axis."""
        return self.axes.index(letter)

    @property
    def packed(self) -> bool:
        """True if sequences lie one behind the other."""
        return "b" not in self.axes

    @property
    def whole(self) -> str:
        """The axes of an expanded array."""
        return "b" + self.axes if self.packed else self.axes

    def expanded(self, x: NDArray[Any]) -> NDArray[Any]:
        """An array with an axis b in front if the layout has none."""
        return x[None] if self.packed else x

    def by_rows(self, x: NDArray[Any]) -> NDArray[Any]:
        """An array as [B, S, H, D]."""
        return self.expanded(x).transpose(self.to_rows_first)

    def given(self, x: NDArray[Any]) -> NDArray[Any]:
        """An expanded array without the axis b that the layout does not have."""
        return x[0] if self.packed else x

    @cached_property
    def to_rows_first(self) -> tuple[int, ...]:
        """The transposition of an expanded array to [B, S, H, D]."""
        return _transposition(self.whole, ROWS_FIRST)

    @cached_property
    def from_rows_first(self) -> tuple[int, ...]:
        """The transposition of [B, S, H, D] to this layout."""
        return _transposition(ROWS_FIRST, self.whole)

    @cached_property
    def to_heads_first(self) -> tuple[int, ...]:
        """The transposition of an array to [B, H, S, D]."""
        return _transposition(self.whole, HEADS_FIRST)

    @cached_property
    def from_heads_first(self) -> tuple[int, ...]:
        """The transposition of [B, H, S, D] to this layout."""
        return _transposition(HEADS_FIRST, self.whole)


LAYOUTS = {
    row.name: row
    for row in (
        AxisOrder("bshd", axes="bshd"),
        AxisOrder("bhsd", axes="bhsd"),
        AxisOrder("thd", axes="shd"),
    )
}
DEFAULT, TOKENS_FIRST = "bshd", "thd"


def axis_order(name: str) -> AxisOrder:
    """The row of a layout."""
    return LAYOUTS[name]


def _transposition(axes: str, wanted: str) -> tuple[int, ...]:
    return tuple(axes.index(axis) for axis in wanted)
