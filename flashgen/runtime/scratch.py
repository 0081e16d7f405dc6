"""The memory that the kernels of a call hand to each other: one array for all, since a call pays for each array that it makes."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from flashgen.dtypes import by_name
from flashgen.plan.geometry import Sizes, extent
from flashgen.plan.geometry import shape as shape_of
from flashgen.plan.kernel import SharePlan
from flashgen.plan.program import Program
from flashgen.runtime.arrays import DeviceFamily

_ALIGNMENT = 256  # bytes, as arrays of their own would have
_WORD = 4  # bytes of an int32

Made = tuple[tuple[int, ...], str]  # the shape and dtype of an array to make


class Scratch(NamedTuple):
    """Arrays behind each other in one."""

    arrays: Mapping[str, Made]
    places: tuple[int, ...]  # of each, in bytes
    words: int  # of all
    used: bool  # somebody writes there: of one share of keys nothing is handed on

    @classmethod
    def of(cls, program: Program, sizes: Sizes) -> "Scratch":
        """The scratch of a program in a call of these sizes."""
        arrays = {each.name: (shape_of(each, sizes), each.dtype) for each in program.scratch}
        places, end = [], 0
        for shape, dtype in arrays.values():
            places.append(end)
            end += -(-math.prod(shape) * by_name(dtype).bytes // _ALIGNMENT) * _ALIGNMENT
        used = any(not isinstance(each.shape[0], SharePlan) or extent(each.shape[0], sizes) > 1 for each in program.scratch)
        return cls(arrays, tuple(places), end // _WORD, used)

    def memory(self, family: DeviceFamily, beside: Any) -> Any:
        """The one array, on the GPU of another; of a word at least, since even an empty array has an address."""
        return family.scratch((max(1, self.words),), "int32", beside)

    def at(self, address: int) -> list[int]:
        """The address of each array, in memory that begins at an address."""
        return [address + place for place in self.places]


def largest(program: Program, bounds: Sizes) -> int:
    """The bytes that the scratch of a program has at most, in calls whose lengths are at most these.

    Fewer query tiles are cut into more shares, so that scratch may shrink as lengths grow: all numbers of query tiles are tried, and with
    `split: auto` of sequences.
    """
    plan = program.shares
    if not isinstance(plan, SharePlan) or plan.count:
        return _WORD * Scratch.of(program, bounds).words
    group = bounds.group if plan.grouped else 1
    tiles = range(1, -(-bounds.q_len * group // plan.block_m) + 1)
    q_lens = {min(bounds.q_len, max(1, n * plan.block_m // group)) for n in tiles}
    batches = range(1, bounds.batch + 1) if plan.whole_call else [bounds.batch]
    return _WORD * max(Scratch.of(program, replace(bounds, batch=b, q_len=q)).words for b in batches for q in q_lens)


NO_SCRATCH = Scratch({}, (), 0, False)
