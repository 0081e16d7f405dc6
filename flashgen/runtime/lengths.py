"""Calls that differ in lengths alone from one that was prepared, as those of a cache that grows by a key a step: its record is patched."""

import functools
import operator
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flashgen.dtypes import by_name
from flashgen.expr.language.reads import RUNS_OVER, indices, over
from flashgen.expr.prove.affine import MAX_LENGTH
from flashgen.plan.geometry import Sizes, block_count, extent
from flashgen.plan.kernel import Extent, SharePlan
from flashgen.plan.params import record_dtype
from flashgen.plan.program import Argument, Program
from flashgen.plan.sections import sections
from flashgen.plan.shares import FEW_ROWS
from flashgen.runtime import tma
from flashgen.runtime.arguments import output_shapes, rows_first
from flashgen.runtime.arrays import Family, Key, Layout, contiguous_strides
from flashgen.runtime.device import device
from flashgen.runtime.executable import ROLES, Change, Launch, stride_change
from flashgen.runtime.overlap import Apart
from flashgen.runtime.scratch import Made, Scratch
from flashgen.runtime.tuned import length_class
from flashgen.spec import Spec, axes
from flashgen.spec.layout import AxisOrder
from flashgen.spec.outputs import OUTPUTS
from flashgen.spec.tensors import Lengths, Lists

_SCALARS = ("q_len", "kv_len", "section", "shares")  # that follow from lengths
_PACK = {"int": struct.Struct("<i").pack_into, "float": struct.Struct("<f").pack_into}
_OUTPUT_OFFSET = 0  # of new arrays from a multiple of 16 bytes; pools give 256 or 512

Lies = tuple[tuple[int, ...], tuple[int, ...]]  # the shape and the strides of an array as kernels address it, q, k, v and o [B, S, H, D]


def fresh(made: Mapping[str, Made], ordinal: int | None) -> dict[str, Layout]:
    """The layouts that new arrays will have; `ordinal`: of a GPU, None for host memory."""
    return {name: Layout(shape, contiguous_strides(shape), dtype, ordinal, _OUTPUT_OFFSET) for name, (shape, dtype) in made.items()}


@dataclass(frozen=True)
class Prepared:
    """The part of a call that calls on arrays of the same layouts share."""

    ordinal: int
    outputs: Mapping[str, Made]
    scratch: Scratch
    launch: Launch | None  # None: there is no query
    apart: Apart
    without_keys: bool = False


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
            length = "q_len" if name in ("q", "o") else "page" if spec.page else "kv_len"
            words[name] = spec.order_of(name).arranged(b=("b",), s=(length,), h=("h",), d=("d",))
        for tensor in spec.tensors:  # an axis may be declared as a number and yet has to be as long as what runs over it
            read = list(indices(spec)[tensor.name])
            if (at := spec.geometry.joined(tensor.shape)) is not None:
                del read[at]
            words[tensor.name] = [
                (word, *(RUNS_OVER[index] for index in over(axis))) for word, axis in zip(spec.given(tensor).shape, read, strict=True)
            ]
        words |= {array.name: [(axis,) for axis in array.shape] for array in spec.arrays if isinstance(array, Lengths | Lists)}
        found = (str(word) for of_name in words.values() for axis in of_name for word in axis)
        self.words = tuple(dict.fromkeys(word for word in found if _follows(word)))  # what is told by lengths alone
        of_axes = [[[self.words.index(str(word)) for word in axis if word in self.words] for axis in words[name]] for name in names]
        self.lengths = [[(i, which) for i, found in enumerate(axes) for which in found] for axes in of_axes]
        self.others = [_getter([i for i, found in enumerate(axes) if not found]) for axes in of_axes]

    def key(self, params: tuple[Any, ...], likes: Sequence[Key]) -> tuple[Any, ...]:
        """A key, equal for calls that differ in lengths alone and whose lengths are of one class; empty if an axis is missing."""
        try:
            found = self.keys is not None and length_class(likes[1][0][self.keys]), likes[0][0][self.sequence] <= FEW_ROWS[-1]
            return found, params, *[(len(like[0]), others(like[0]), like[2:]) for others, like in zip(self.others, likes, strict=True)]
        except IndexError:
            return ()


def _follows(axis: str | int) -> bool:
    """True if lengths alone tell the extent of an axis."""
    return bool(named := axes.names(axis)) and named <= {"q_len", "kv_len"}


def _getter(positions: Sequence[int]) -> Callable[[tuple[int, ...]], Any]:
    return operator.itemgetter(*positions) if positions else len


def _turn(order: AxisOrder) -> Callable[[tuple[int, ...]], Any]:
    """A shape to that of [B, S, H, D]."""
    found = operator.itemgetter(*order.to_rows_first)
    return (lambda shape: found((1, *shape))) if order.packed else found


class Turns:
    """The patterns of calls that differ in lengths alone."""

    def __init__(self) -> None:
        self.patterns: tuple[Pattern, ...] = ()  # the one adapted longest ago first

    def pattern(self, likes: Sequence[Key], enough: int) -> "Pattern | None":
        """The one that holds these lengths already, else the one adapted longest ago, once there are enough."""
        for pattern in self.patterns:
            if pattern.likes == likes:
                return pattern
        if len(self.patterns) < enough:
            return None
        self.patterns = self.patterns[1:] + self.patterns[:1]
        return self.patterns[-1]


class Pattern:
    """A prepared call with a launch of its own, which is adapted to calls whose `Axes.key` is the same, one after the other.

    Whoever asks for one holds `lock` until its launch is done.
    """

    def __init__(
        self,
        axes: Axes,
        params: Mapping[str, int | float],
        likes: Sequence[Key],
        families: Sequence[Family],
        program: Program,
        sizes: Sizes,
        prepared: Prepared,
        serves: Callable[[Sizes], bool],
    ):
        """`serves`: true of the sizes of calls that the program serves."""
        self.lock, self.params, self.likes = threading.Lock(), params, list(likes)
        self._axes, self._serves = axes, serves
        self._turn = {name: _turn(program.spec.order_of(name)) for name in ROLES}  # of a shape
        self._program, self._sizes, self._prepared = program, sizes, prepared
        dtype, arguments = record_dtype(program.arguments), program.arguments
        assert dtype.fields is not None
        offsets = {argument.name: dtype.fields[argument.name][1] for argument in arguments}
        self._sections = sections(program)
        self._scalars = [(a.of, _PACK[a.cuda], offsets[a.name]) for a in arguments if a.kind == "scalar" and a.of in _SCALARS]
        extents = [size for shape in (*(k.grid.blocks for k in program.kernels), *(s.shape for s in program.scratch)) for size in shape]
        self._of_keys = tuple(size for size in dict.fromkeys((*extents, program.shares)) if _follows_keys(size))
        self._counts = self._counted(sizes)
        self._strides: dict[str, list[tuple[Argument, int]]] = {}
        for argument in arguments:
            if argument.kind in ("strides", "array", "sums", "extent"):
                self._strides.setdefault(argument.of, []).append((argument, offsets[argument.name]))
        self._maps: dict[str, list[tuple[tma.Map, int]]] = {}
        assert prepared.launch
        addressed = [argument for argument in arguments if argument.kind not in ("scalar", "strides", "extent")]
        for argument, write in zip(addressed, prepared.launch.writes, strict=True):
            if write.map:
                self._maps.setdefault(argument.of, []).append((write.map, write.at))
        given = {t.name: t.argument for t in program.spec.arrays}
        self._arguments = [given.get(name, name) for name in axes.names]
        self._tensors = frozenset(t.argument for t in program.spec.tensors)
        fixed = [(len(like[0]), others(like[0]), like[2:]) for others, like in zip(axes.others, likes, strict=True)]
        self._arrays = tuple(zip(self._arguments, axes.lengths, axes.others, fixed, families, strict=True))
        layouts = [family.layout(like) for family, like in zip(families, likes, strict=True)]
        self._lies = {name: self._by_rows(name, layout) for name, layout in zip(self._arguments, layouts, strict=True)}

    def adapted(self, likes: Sequence[Key]) -> Prepared | None:
        """The call on arrays of other lengths; None if they differ in more, do not fit together, or another plan may serve them."""
        if likes == self.likes:
            return self._prepared
        known, sequence, of = self._prepared, self._axes.sequence, self._sizes
        try:
            q_len, kv_len = likes[0][0][sequence], of.kv_len if self._axes.keys is None else likes[1][0][self._axes.keys]
        except IndexError:  # an axis is missing
            return None
        sizes = replace(of, q_len=q_len, kv_len=kv_len)
        changed = self._changed(likes, [sizes.axis(word) for word in self._axes.words])
        if changed is None or not 0 < q_len <= MAX_LENGTH or not 0 < kv_len <= MAX_LENGTH:
            return None
        if not self._serves(sizes):
            return None
        if q_len != of.q_len:
            shapes = output_shapes(self._program.spec, sizes)
            outputs = {name: (shapes[name], dtype) for name, (_, dtype) in known.outputs.items()}
            known, changed = replace(known, outputs=outputs), self._fresh(outputs) | changed
        counts = self._counted(sizes)
        if resized := q_len != of.q_len or counts != self._counts:
            scratch = Scratch.of(self._program, sizes)
            known, changed = replace(known, scratch=scratch), changed | self._fresh(scratch.arrays)
        if known.apart.pairs:
            layouts = [family.layout(like) for (*_, family), like in zip(self._arrays, likes, strict=True)]
            known = replace(known, apart=known.apart.moved(dict(zip(self._axes.names, layouts, strict=True))))
        self._adapt(sizes, changed, resized)
        self.likes, self._sizes, self._prepared, self._counts = list(likes), sizes, known, counts
        self._lies |= changed
        return known

    def _by_rows(self, name: str, layout: Layout) -> Lies:
        rows = rows_first(layout, self._program.spec.layout_of(name)) if name in ROLES else layout
        return rows.shape, rows.strides

    def _fresh(self, made: Mapping[str, Made]) -> dict[str, Lies]:
        return {name: self._by_rows(name, layout) for name, layout in fresh(made, self._prepared.ordinal).items()}

    def _changed(self, likes: Sequence[Key], lengths: Sequence[int]) -> dict[str, Lies] | None:
        """The lie of given arrays that are not as before, by argument; None if a length is not that of the call, or if an array differs in
        more, or lies so that another plan may serve it."""
        if len(likes) != len(self.likes):
            return None
        changed = {}
        for like, before, (name, lengths_at, others, fixed, family) in zip(likes, self.likes, self._arrays, strict=True):
            shape = like[0]
            if like != before:
                if len(shape) != fixed[0] or others(shape) != fixed[1] or like[2:] != fixed[2]:
                    return None
                if like[1] == before[1] and name in ROLES:
                    if name in self._maps:  # of what is addressed by strides nothing has changed
                        changed[name] = self._turn[name](shape), self._lies[name][1]
                else:
                    layout = family.layout(like)
                    if not (_plain(layout.strides, layout.dtype) if name in ROLES else name in self._tensors or layout.contiguous):
                        return None
                    changed[name] = self._by_rows(name, layout)
            for axis, which in lengths_at:
                if shape[axis] != lengths[which]:
                    return None
        return changed

    def _counted(self, sizes: Sizes) -> list[int]:
        """The extents of scratch and launch that follow from the number of keys: a share has many keys, so most calls change none."""
        return [extent(size, sizes) for size in self._of_keys]

    def _adapt(self, sizes: Sizes, changed: Mapping[str, Lies], resized: bool) -> None:
        """Patches the record; `resized`: scratch and launch are not as large as before."""
        launch, grids = self._prepared.launch, None
        assert launch
        values = {"q_len": sizes.q_len, "kv_len": sizes.kv_len, "section": self._sections.heads(sizes)}
        if resized:  # which may be refused: before anything is changed
            values["shares"] = extent(self._program.shares, sizes)
            multiprocessors = device(self._prepared.ordinal).multiprocessors
            grids = [block_count(kernel, sizes, multiprocessors) for kernel in self._program.kernels]
        changes: list[Change] = [(pack, offset, (values[of],)) for of, pack, offset in self._scalars if of in values]
        moved = []
        for name, lies in changed.items():
            for argument, offset in self._strides.get(name, ()):
                changes.append(stride_change(argument, offset, *lies))
            for map, at in self._maps.get(name, ()):
                map.lay(*lies)
                moved.append(at)
        launch.adapt(changes, moved, grids)


def _follows_keys(size: Extent) -> bool:
    """True if the number of keys decides an extent."""
    return isinstance(size, SharePlan) or size == "kv_len" or (isinstance(size, tuple) and size[0] == "kv_len")


@functools.lru_cache(1024)
def _plain(strides: tuple[int, ...], dtype: str) -> bool:
    """True if every plan takes these strides, whatever the axes: the last one is dense, and the others are what tensor maps ask for."""
    size = by_name(dtype).bytes
    return strides[-1] == 1 and all(0 < s * size < tma.STRIDE_LIMIT and not s * size % tma.ALIGNMENT for s in strides[:-1])
