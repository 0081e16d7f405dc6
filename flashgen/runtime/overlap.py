"""Refuses outputs of a caller that share elements: with themselves, with each other, or with what is read."""

import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import SimpleNamespace

import numpy as np

from flashgen.dtypes import by_name
from flashgen.errors import CallError
from flashgen.runtime.arrays import Layout

Lies = tuple[tuple[int, ...], tuple[int, ...]]  # the shape of an array and its strides in elements
_MOST_WORK = 1 << 20  # candidates that are tried before two arrays count as sharing: strides of real arrays need a few


class Apart:
    """The pairs of arrays to look at in every call on arrays of these layouts, by name in the order of their addresses."""

    def __init__(self, layouts: Mapping[str, Layout], written: Collection[str]):
        """The pairs for these layouts. Raises CallError for an array to be written to whose elements are not all its own."""
        for name in written:
            _refuse_folded(name, layouts[name])
        self.names, self._layouts = tuple(layouts), tuple(layouts.values())
        named = list(enumerate(layouts))
        self.pairs = [(i, j) for i, name in named for j, other in named if name in written and (other not in written or j < i)]
        self._written = frozenset(i for i, name in named if name in written)
        self._lies = [layout[:2] for layout in self._layouts]
        self._bytes = [by_name(layout.dtype).bytes for layout in self._layouts]
        self._reaches = [_reach(*lies, size) for lies, size in zip(self._lies, self._bytes, strict=True)] if self.pairs else []

    def move(self, changed: Iterable[tuple[int, Lies]]) -> None:
        """Arrays, by their places, have another shape and other strides now. Raises CallError as above."""
        for i, (shape, strides) in changed:
            self._lies[i] = shape, strides
            self._reaches[i] = _reach(shape, strides, self._bytes[i])
            if i in self._written:
                _refuse_folded(self.names[i], self._layout(i))

    def check(self, addresses: Sequence[int]) -> None:
        """Raises CallError where something would be written into what is read, or into what else is written."""
        for i, j in self.pairs:
            (low, high), (first, last) = self._reaches[i], self._reaches[j]
            ours, theirs = addresses[i], addresses[j]
            near = ours + low < theirs + last and theirs + first < ours + high
            if near and meet(self._layout(i), ours, self._layout(j), theirs):
                what = f"out for {self.names[i]} shares memory with {self.names[j]}"
                raise CallError(f"{what}: give an array of its own, or leave out away")

    def _layout(self, i: int) -> Layout:
        shape, strides = self._lies[i]
        return self._layouts[i]._replace(shape=shape, strides=strides)


def _refuse_folded(name: str, layout: Layout) -> None:
    if folded(layout):
        what = f"{name} has shape {list(layout.shape)} and strides {list(layout.strides)}"
        raise CallError(f"out for {what}: some of its elements are one, as of an expanded array. Give one that has them all")


def reach(layout: Layout) -> tuple[int, int]:
    """The bytes that an array spans, from the address of its first element on: begin and end.

    >>> reach(Layout((3, 2), (-2, 1), "float32", None, 0))
    (-16, 8)
    """
    return _reach(layout.shape, layout.strides, by_name(layout.dtype).bytes)


def _reach(shape: tuple[int, ...], strides: tuple[int, ...], size: int) -> tuple[int, int]:
    if 0 in shape:
        return 0, 0
    low = 0 if min(strides, default=0) >= 0 else sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True) if stride < 0)
    return size * low, size * (sum(map(operator.mul, shape, strides)) - sum(strides) - low + 1)


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
