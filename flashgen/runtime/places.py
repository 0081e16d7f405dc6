"""The places of a record that tell how long an array is and how it lies, so that they can be changed without filling it anew."""

import operator
import struct
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

from flashgen.plan.params import record_dtype
from flashgen.plan.program import Argument, Program
from flashgen.runtime import tma
from flashgen.runtime.executable import ROLES, Change, Launch, stride_change
from flashgen.runtime.overlap import Lies
from flashgen.spec import Spec

_PACK = {"int": struct.Struct("<i").pack_into, "float": struct.Struct("<f").pack_into}

Extents = tuple[int, ...]  # a shape or strides, an entry an axis


class Place(NamedTuple):
    """The knowledge that a launch has of an array besides its address."""

    strides: list[tuple[Argument, int]]  # members that have its strides or extents, and where
    maps: list[tuple[tma.Map, int]]  # and the place of its address among those of a launch
    turned: Callable[
        [Extents, int], Extents
    ]  # as kernels address it, q, k, v and o [B, S, H, D]; the number is for an axis b that it lacks

    def lay(self, lies: Lies, changes: list[Change], moved: list[int]) -> None:
        """The array lies so from now on: adds the changes of the record, and the maps that do."""
        shape, strides = self.turned(lies[0], 1), self.turned(lies[1], 0)
        for argument, offset in self.strides:
            changes.append(stride_change(argument, offset, shape, strides))
        for map, at in self.maps:
            map.lay(shape, strides)
            moved.append(at)


class Places:
    """The places of a launch's record."""

    def __init__(self, program: Program, launch: Launch):
        self._spec = program.spec
        self._strides: dict[str, list[tuple[Argument, int]]] = defaultdict(list)
        self._maps: dict[str, list[tuple[tma.Map, int]]] = defaultdict(list)
        self._scalars: dict[str, list[tuple[Callable[..., None], int]]] = defaultdict(list)
        fields = record_dtype(program.arguments).fields
        assert fields is not None
        writes = iter(launch.writes)
        for argument in program.arguments:
            offset = fields[argument.name][1]
            if argument.kind == "scalar":
                self._scalars[argument.of].append((_PACK[argument.cuda], offset))
                continue
            if argument.kind in ("strides", "array", "sums", "extent"):
                self._strides[argument.of].append((argument, offset))
            if argument.kind not in ("strides", "extent") and (write := next(writes)).map:
                self._maps[argument.of].append((write.map, write.at))

    def of(self, name: str) -> Place:
        """The place of an array, by the name of its argument."""
        return Place(self._strides[name], self._maps[name], _turned(self._spec, name) if name in ROLES else _as_it_is)

    def scalars(self, name: str, value: int) -> list[Change]:
        """The changes that put a number into the record, by what it is of."""
        return [(pack, offset, (value,)) for pack, offset in self._scalars[name]]


def _turned(spec: Spec, name: str) -> Callable[[Extents, int], Extents]:
    order = spec.order_of(name)
    turned = operator.itemgetter(*order.to_rows_first)
    return (lambda axes, first: turned((first, *axes))) if order.packed else (lambda axes, _: turned(axes))


def _as_it_is(axes: Extents, _: int) -> Extents:
    return axes
