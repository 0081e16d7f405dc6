"""The axes of a call's arrays that are lengths, so that calls that differ in these alone may share what one prepared."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from flashgen.expr.language.reads import EXTENT_OF, indices, over
from flashgen.plan.geometry import Sizes
from flashgen.plan.shares import FEW_ROWS
from flashgen.runtime.arrays import Key
from flashgen.runtime.executable import ROLES
from flashgen.runtime.tuned import length_class
from flashgen.spec import Spec, axes
from flashgen.spec.outputs import OUTPUTS
from flashgen.spec.tensors import Lengths, Lists


class Axes:
    """The axes of a call's arrays that are lengths, by name; all others are the same in calls that differ in lengths alone."""

    def __init__(self, spec: Spec, names: Sequence[str]):
        self.sequence = spec.order.axis("s")  # of q
        self.keys = None if spec.page else self.sequence  # of k; None: a table's columns, which are alike in calls that differ in lengths
        self.names = tuple(names)
        words: dict[str, Sequence[Sequence[str | int]]] = {
            name: [(axis,) for axis in row.axes if axis != "b" or not spec.geometry.packed]
            for name, row in OUTPUTS.items()
            if row.axes is not None
        }
        for name in ROLES:
            length = "q_len" if name in ("q", "o", "o_raw") else "page" if spec.page else "kv_len"
            words[name] = spec.order_of(name).arranged(b=("b",), s=(length,), h=("h",), d=("d",))
        for tensor in spec.tensors:  # an axis may be declared as a number and yet has to be as long as what runs over it
            read = list(indices(spec)[tensor.name])
            if (at := spec.geometry.joined(tensor.shape)) is not None:
                del read[at]
            words[tensor.name] = [
                (word, *(EXTENT_OF[index] for index in over(axis))) for word, axis in zip(spec.given(tensor).shape, read, strict=True)
            ]
        words |= {array.name: [(axis,) for axis in array.shape] for array in spec.arrays if isinstance(array, Lengths | Lists)}
        told = {name: [[word for word in axis if _follows(axis, word)] for axis in of_name] for name, of_name in words.items()}
        # Of extents that lengths alone tell, beside which a number may stand.
        self.words = tuple(dict.fromkeys(("q_len", "kv_len", *(word for of_name in told.values() for axis in of_name for word in axis))))
        of_axes = [[[self.words.index(word) for word in axis] for axis in told[name]] for name in names]
        self.lengths = [[(i, which) for i, found in enumerate(axes) for which in found] for axes in of_axes]
        self.others = [_getter([i for i, found in enumerate(axes) if not found]) for axes in of_axes]

    def extents(self, q_len: int, kv_len: int, sizes: Sizes) -> Sequence[int]:
        """The extents of `words` in a call whose other sizes are these."""
        more = self.words[2:]
        if not more:
            return q_len, kv_len
        sizes = replace(sizes, q_len=q_len, kv_len=kv_len)
        return q_len, kv_len, *map(sizes.axis, more)

    def shape(self, i: int, like: tuple[int, ...]) -> Callable[[Sequence[int]], tuple[int, ...] | None]:
        """The shape that the i-th array has to have, by `extents`, where others of its axes are as those of one; None: none fits."""
        lengths = self.lengths[i]
        if not lengths:
            return lambda _: like
        if len(lengths) == 1:
            ((at, which),) = lengths
            before, behind = like[:at], like[at + 1 :]
            return lambda extents: (*before, extents[which], *behind)

        def several(extents: Sequence[int]) -> tuple[int, ...] | None:
            found = list(like)
            for at, which in lengths:
                found[at] = extents[which]
            return tuple(found) if all(found[at] == extents[which] for at, which in lengths) else None

        return several

    def key(self, params: tuple[Any, ...], likes: Sequence[Key]) -> tuple[Any, ...]:
        """A key, equal for calls that differ in lengths alone and whose lengths are of one class; empty if an axis is missing."""
        try:
            found = self.keys is not None and length_class(likes[1][0][self.keys]), likes[0][0][self.sequence] <= FEW_ROWS[-1]
            return found, params, *[(len(like[0]), others(like[0]), like[2:]) for others, like in zip(self.others, likes, strict=True)]
        except IndexError:
            return ()


def _follows(axis: Sequence[str | int], word: str | int) -> bool:
    """True if lengths alone tell the extent of an axis by a word, or by another one beside this number."""
    if isinstance(word, int):
        return any(_follows(axis, other) for other in axis if isinstance(other, str))
    return bool(named := axes.names(word)) and named <= {"q_len", "kv_len"}


def _getter(positions: Sequence[int]) -> Callable[[tuple[int, ...]], Any]:
    return operator.itemgetter(*positions) if positions else len
