"""Calls that differ in lengths alone from one that was prepared, as those of a cache that grows by a key a step: its record is patched."""

import functools
import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from flashgen.dtypes import by_name
from flashgen.expr.prove.affine import MAX_LENGTH
from flashgen.plan.geometry import Sizes, block_count, extent
from flashgen.plan.kernel import Extent, Merging, SharePlan
from flashgen.plan.program import Program
from flashgen.plan.sections import sections
from flashgen.plan.shares import CHUNK_BYTES
from flashgen.runtime import tma
from flashgen.runtime.arguments import output_shapes
from flashgen.runtime.arrays import Family, Key, Layout, contiguous_strides
from flashgen.runtime.axes import Axes
from flashgen.runtime.device import device
from flashgen.runtime.executable import Launch
from flashgen.runtime.overlap import Apart, Lies, folded
from flashgen.runtime.places import Place, Places
from flashgen.runtime.scratch import Made, Scratch

_OUTPUT_OFFSET = 0  # of new arrays from a multiple of 16 bytes; pools give 256 or 512
_AHEAD = (255, 127, 63, 31, 15)  # keys that a sequence may grow by, for which it is tried whether they decide nothing new
_CHUNK = CHUNK_BYTES // 2  # keys of 16 bits: plans may differ by whether a row of keys is whole chunks


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


class Turns:
    """The patterns of calls that differ in lengths alone."""

    def __init__(self) -> None:
        self.patterns: tuple[Pattern, ...] = ()  # the one adapted longest ago last
        self._found: list[_Steady] = []  # the range of lengths that one of them found last

    def pattern(self, likes: Sequence[Key], enough: int) -> "Pattern | None":
        """The one that holds these lengths already, else the one adapted longest ago, once there are enough."""
        keys = likes[1]  # in which calls differ first
        for pattern in self.patterns:
            if pattern.likes[1] == keys and pattern.likes == likes:
                return pattern
        if len(self.patterns) < enough:
            return None
        self.patterns = self.patterns[-1:] + self.patterns[:-1]
        return self.patterns[0]

    def add(self, pattern: "Pattern", most: int) -> None:
        """Another one; of as many as there may be, in the place of the one that was adapted, or tried, longest ago."""
        pattern.found = self._found
        self.patterns = (*self.patterns, pattern) if len(self.patterns) < most else (pattern, *self.patterns[:-1])


class _Array(NamedTuple):
    """An array of a call: what stays as it is when lengths change."""

    at: int  # its place among the arrays of a call
    shape: Callable[[Sequence[int]], tuple[int, ...] | None]  # by `Axes.extents`
    family: Family
    place: Place
    serves: Callable[[Layout], bool]  # true of a layout that every plan takes
    sliced: bool  # if its strides stay, every plan takes them whatever its lengths are
    of_queries: bool  # no number of keys decides its shape
    told: bool  # the record tells its lengths, and not its strides alone


class _Steady(NamedTuple):
    """All that lengths decide besides themselves: the same for one number of queries and a range of numbers of keys."""

    q_len: int
    keys: range
    decided: tuple[Any, ...]


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
        serves: Callable[[Sizes], Any],
    ):
        """`serves`: what lengths say of the plans that serve them. Calls with another answer are not adapted to."""
        assert prepared.launch
        self.lock, self.params, self.likes, self.found = threading.Lock(), params, list(likes), list[_Steady]()
        self._axes, self._serves, self._program, self._sizes, self._prepared = axes, serves, program, sizes, prepared
        self._launch, self._places = prepared.launch, Places(program, prepared.launch)
        layouts = [family.layout(like) for family, like in zip(families, likes, strict=True)]
        self._lies = prepared.apart.lies  # of all arrays
        self._arrays = [self._array(i, *each) for i, each in enumerate(zip(families, layouts, strict=True))]
        self._by_keys = [array for array in self._arrays if not array.of_queries]
        self._of_queries = operator.itemgetter(*(array.at for array in self._arrays if array.of_queries))  # q is one
        self._sections = sections(program)
        extents = [size for shape in (*(k.grid.blocks for k in program.kernels), *(s.shape for s in program.scratch)) for size in shape]
        self._of_keys = tuple(size for size in dict.fromkeys((*extents, program.shares)) if _follows_keys(size))
        self._steady = _Steady(sizes.q_len, range(sizes.kv_len, sizes.kv_len + 1), self._decided(sizes))

    def _array(self, i: int, family: Family, layout: Layout) -> _Array:
        """One of the arrays of the prepared call."""
        spec, name = self._program.spec, self._axes.names[i]
        serves = _SERVED.get(name) or (_any if name in [t.name for t in spec.tensors] else _contiguous)
        place, sliced = self._places.of({t.name: t.argument for t in spec.arrays}.get(name, name)), serves is _plain and serves(layout)
        return _Array(
            at=i,
            shape=self._axes.shape(i, layout.shape),
            family=family,
            place=place,
            serves=serves,
            sliced=sliced,
            of_queries=all(self._axes.words[which] == "q_len" for _, which in self._axes.lengths[i]),
            told=bool(place.maps) or not sliced,
        )

    def adapted(self, likes: Sequence[Key]) -> Prepared | None:
        """The call on arrays of other lengths; None if they differ in more, do not fit together, or another plan may serve them."""
        if likes == self.likes:
            return self._prepared
        axes, steady = self._axes, self._steady
        try:
            q_len, kv_len = likes[0][0][axes.sequence], self._sizes.kv_len if axes.keys is None else likes[1][0][axes.keys]
        except IndexError:  # an axis is missing
            return None
        if not (q_len == steady.q_len and kv_len in steady.keys):
            found = self._steady_from(q_len, kv_len)
            if not found:
                return None
            steady = found
        changed = self._changed(likes, axes.extents(q_len, kv_len, self._sizes), q_len == self._steady.q_len)
        if changed is None:
            return None
        self._adapt(steady, kv_len, changed)
        self.likes = list(likes)
        return self._prepared

    def _changed(self, likes: Sequence[Key], extents: Sequence[int], as_many: bool) -> list[tuple[int, Lies]] | None:
        """The places of given arrays that are not as before, and how they lie; None if a shape does not fit the lengths of the call, or if
        an array differs in more, or lies so that another plan may serve it. `as_many`: queries as before."""
        if len(likes) != len(self.likes):
            return None
        changed: list[tuple[int, Lies]] = []
        alike = as_many and self._of_queries(likes) == self._of_queries(self.likes)
        for array in self._by_keys if alike else self._arrays:
            i = array.at
            like, before = likes[i], self.likes[i]
            if like[0] != array.shape(extents):
                return None
            if like == before:
                continue
            if array.sliced and like[1:] == before[1:]:
                changed.append((i, (like[0], self._lies[i][1])))
            elif like[2:] == before[2:] and array.serves(layout := array.family.layout(like)):
                changed.append((i, layout[:2]))
            else:
                return None
        return changed

    def _adapt(self, steady: _Steady, kv_len: int, changed: Sequence[tuple[int, Lies]]) -> None:
        """Patches the record."""
        further = steady is not self._steady
        if further and (steady.q_len != self._steady.q_len or steady.decided != self._steady.decided):
            self._resize(replace(self._sizes, q_len=steady.q_len, kv_len=kv_len))
        self._places.put("kv_len", kv_len)
        for i, lies in changed:
            array, restrided = self._arrays[i], lies[1] != self._lies[i][1]
            if array.told or restrided:
                array.place.lay(lies)
            self._lies[i] = lies
            further = further or restrided
        self._steady = steady
        if further and self._prepared.apart.pairs:
            extents = self._axes.extents(steady.q_len, steady.keys[-1], self._sizes)
            self._prepared.apart.span([(array.shape(extents) or (), lies[1]) for array, lies in zip(self._arrays, self._lies, strict=True)])

    def _steady_from(self, q_len: int, kv_len: int) -> _Steady | None:
        """Finds what these lengths decide, and up to how many keys; None if another plan may serve them.

        As keys grow, each part of it goes one way, so that what is the same at both ends of a range is the same within; but for whether
        rows of keys are whole chunks, so a range ends at one that is, and the number before is asked about too.
        """
        if not 0 < q_len <= MAX_LENGTH or not 0 < kv_len <= MAX_LENGTH:
            return None
        for known in self.found:
            if q_len == known.q_len and kv_len in known.keys and known.decided[0] == self._steady.decided[0]:
                return known
        sizes = replace(self._sizes, q_len=q_len, kv_len=kv_len)
        decided = self._decided(sizes)
        if decided[0] != self._steady.decided[0]:
            return None
        ends = ((kv_len + ahead) // _CHUNK * _CHUNK for ahead in _AHEAD)
        last = next((end for end in ends if self._decide_alike(replace(sizes, kv_len=end), decided)), kv_len)
        found = _Steady(q_len, range(kv_len, min(last, MAX_LENGTH) + 1), decided)
        self.found[:] = [found]
        return found

    def _decide_alike(self, sizes: Sizes, decided: tuple[Any, ...]) -> bool:
        """True if these sizes decide the same, and one key less is served by the same plan."""
        return self._decided(sizes) == decided and self._serves(replace(sizes, kv_len=sizes.kv_len - 1)) == decided[0]

    def _decided(self, sizes: Sizes) -> tuple[Any, ...]:
        """The plan that serves, the extents of scratch and launch that follow from the number of keys, the limits of a section."""
        return self._serves(sizes), [extent(size, sizes) for size in self._of_keys], self._sections.limits(sizes)

    def _resize(self, sizes: Sizes) -> None:
        """Makes outputs, scratch and the launch as large as lengths ask for. Raises CallError, before anything is changed."""
        known, program, given = self._prepared, self._program, self._axes.names
        multiprocessors = device(known.ordinal).multiprocessors
        self._launch.resize([block_count(kernel, sizes, multiprocessors) for kernel in program.kernels])
        shapes, scratch = output_shapes(program.spec, sizes), Scratch.of(program, sizes)
        outputs = {name: (shapes[name], dtype) for name, (_, dtype) in known.outputs.items()}
        values = {"q_len": sizes.q_len, "section": self._sections.heads(sizes), "shares": extent(program.shares, sizes)}
        for name, value in values.items():
            self._places.put(name, value)
        for name, layout in fresh({**outputs, **scratch.arrays}, known.ordinal).items():
            if name not in given:
                self._places.of(name).lay(layout[:2])
        self._sizes, self._prepared = sizes, replace(known, outputs=outputs, scratch=scratch)


def _follows_keys(size: Extent) -> bool:
    """True if the number of keys decides an extent."""
    return isinstance(size, SharePlan | Merging) or size == "kv_len" or (isinstance(size, tuple) and size[0] == "kv_len")


def _plain(layout: Layout) -> bool:
    """True if every plan takes these strides, whatever the axes: the last one is dense, and the others are what tensor maps ask for."""
    return _plain_strides(layout.strides, layout.dtype)


@functools.lru_cache(1024)
def _plain_strides(strides: tuple[int, ...], dtype: str) -> bool:
    size = by_name(dtype).bytes
    return strides[-1] == 1 and all(0 < s * size < tma.STRIDE_LIMIT and not s * size % tma.ALIGNMENT for s in strides[:-1])


def _written(layout: Layout) -> bool:
    """The same of an array to be written to, whose elements are all its own."""
    return _plain(layout) and not folded(layout)


def _any(_: Layout) -> bool:
    return True


def _contiguous(layout: Layout) -> bool:
    return layout.contiguous


_SERVED = {"q": _plain, "k": _plain, "v": _plain, "o": _written, "o_raw": _written}
