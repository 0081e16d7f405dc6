"""The memory that the kernels of a call hand to each other: one array for all, since a call pays for each array that it makes."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from flashgen.dtypes import by_name
from flashgen.plan.geometry import Sizes
from flashgen.plan.geometry import shape as shape_of
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

    @classmethod
    def of(cls, program: Program, sizes: Sizes) -> "Scratch":
        """The scratch of a program in a call of these sizes."""
        arrays = {each.name: (shape_of(each, sizes), each.dtype) for each in program.scratch}
        places, end = [], 0
        for shape, dtype in arrays.values():
            places.append(end)
            end += -(-math.prod(shape) * by_name(dtype).bytes // _ALIGNMENT) * _ALIGNMENT
        return cls(arrays, tuple(places), end // _WORD)

    def memory(self, family: DeviceFamily, beside: Any) -> Any:
        """The one array, on the GPU of another."""
        return family.scratch((self.words,), "int32", beside)

    def at(self, address: int) -> list[int]:
        """The address of each array, in memory that begins at an address."""
        return [address + place for place in self.places]


NO_SCRATCH = Scratch({}, (), 0)
