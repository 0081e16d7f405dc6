"""Refuses outputs of a caller that share elements: with themselves, with each other, or with what is read."""

from collections.abc import Collection, Mapping, Sequence
from types import SimpleNamespace

import numpy as np

from flashgen.dtypes import by_name
from flashgen.errors import CallError
from flashgen.runtime.arrays import Layout

Lies = tuple[tuple[int, ...], tuple[int, ...]]  # the shape of an array and its strides in elements
_MOST_WORK = 1 << 20  # candidates that are tried before two arrays count as sharing: strides of real arrays need a few


class Apart:
    """The pairs of arrays to look at in every call on arrays of these layouts, by name in the order of their addresses.

    `lies`: the shape and the strides of each array, which may change.
    """

    def __init__(self, layouts: Mapping[str, Layout], written: Collection[str]):
        """The pairs for these layouts. Raises CallError for an array to be written to whose elements are not all its own."""
        for name in written:
            if folded(layout := layouts[name]):
                what = f"{name} has shape {list(layout.shape)} and strides {list(layout.strides)}"
                raise CallError(f"out for {what}: some of its elements are one, as of an expanded array. Give one that has them all")
        self.names, self._layouts = tuple(layouts), tuple(layouts.values())
        named = list(enumerate(layouts))
        self.pairs = [(i, j) for i, name in named for j, other in named if name in written and (other not in written or j < i)]
        self.lies = [layout[:2] for layout in self._layouts]
        self.span(self.lies)

    def span(self, most: Sequence[Lies]) -> None:
        """Arrays reach as far as larger ones that lie so: what they may grow to."""
        layouts = [layout._replace(shape=shape, strides=strides) for (shape, strides), layout in zip(most, self._layouts, strict=True)]
        reaches = list(map(reach, layouts)) if self.pairs else []
        # From the address of one to that of the other: further apart they cannot meet.
        self._near = [(i, j, reaches[i][0] - reaches[j][1], reaches[i][1] - reaches[j][0]) for i, j in self.pairs]

    def check(self, addresses: Sequence[int]) -> None:
        """Raises CallError where something would be written into what is read, or into what else is written."""
        for i, j, before, behind in self._near:
            ours, theirs = addresses[i], addresses[j]
            if before < theirs - ours < behind and meet(self._layout(i), ours, self._layout(j), theirs):
                what = f"out for {self.names[i]} shares memory with {self.names[j]}"
                raise CallError(f"{what}: give an array of its own, or leave out away")

    def _layout(self, i: int) -> Layout:
        shape, strides = self.lies[i]
        return self._layouts[i]._replace(shape=shape, strides=strides)


def reach(layout: Layout) -> tuple[int, int]:
    """The bytes that an array spans, from the address of its first element on: begin and end.

    >>> reach(Layout((3, 2), (-2, 1), "float32", None, 0))
    (-16, 8)
    """
    low = high = 0
    for n, stride in zip(layout.shape, layout.strides, strict=True):
        if not n:
            return 0, 0
        if stride < 0:
            low += (n - 1) * stride
        else:
            high += (n - 1) * stride
    size = by_name(layout.dtype).bytes
    return size * low, size * (high + 1)


def folded(layout: Layout) -> bool:
    """True if two indices may be one element: no axis steps over all that the axes of smaller strides span.

    >>> folded(Layout((2, 3), (3, 1), "float32", None, 0)), folded(Layout((2, 3), (0, 1), "float32", None, 0))
    (False, True)
    """
    span = 0
    for stride, n in sorted((abs(stride), n) for n, stride in zip(layout.shape, layout.strides, strict=True) if n > 1):
        if stride <= span:
            return 0 not in layout.shape
        span += (n - 1) * stride
    return False


def meet(layout: Layout, address: int, other: Layout, at: int) -> bool:
    """True if arrays at these addresses have an element in common; those of q, k and v packed into one only lie between each other."""
    try:
        found = np.shares_memory(_stand_in(layout, address), _stand_in(other, at), max_work=_MOST_WORK)  # type: ignore[arg-type]  # any int
    except np.exceptions.TooHardError:
        return True
    return found


def _stand_in(layout: Layout, address: int) -> np.ndarray[tuple[int, ...], np.dtype[np.void]]:
    """An array of NumPy at an address that is not read."""
    size = by_name(layout.dtype).bytes
    interface = {
        "data": (address, False),
        "shape": layout.shape,
        "strides": tuple(stride * size for stride in layout.strides),
        "typestr": f"|V{size}",
        "version": 3,
    }
    return np.asarray(SimpleNamespace(__array_interface__=interface))
