"""The places of a record that tell how long an array is and how it lies, so that they can be changed without filling it anew."""

import operator
import struct
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

from flashgen.plan.params import record_dtype
from flashgen.plan.program import Argument, Program
from flashgen.runtime import tma
from flashgen.runtime.executable import ROLES, Launch, put_strides
from flashgen.runtime.overlap import Lies
from flashgen.spec import Spec

_PACK = {"int": struct.Struct("<i").pack_into, "float": struct.Struct("<f").pack_into}

Extents = tuple[int, ...]  # a shape or strides, an entry an axis


class Place(NamedTuple):
    """The knowledge that a launch has of an array besides its address."""

    launch: Launch
    strides: list[tuple[Argument, int]]  # members that have its strides or extents, and where
    maps: list[tuple[tma.Map, int]]  # and the place of its address among those of a launch
    # To the order of kernels, [B, S, H, D] for q, k, v and o, with a number for an axis b that is not there.
    turned: Callable[[Extents, int], Extents]

    def lay(self, lies: Lies) -> None:
        """The array lies so from now on."""
        shape, strides, launch = self.turned(lies[0], 1), self.turned(lies[1], 0), self.launch
        for argument, offset in self.strides:
            put_strides(launch.record, argument, offset, shape, strides)
        for map, at in self.maps:
            map.lay(shape, strides)
            launch.written[at] = -1


class Places:
    """The places of a launch's record."""

    def __init__(self, program: Program, launch: Launch):
        self._spec, self._launch = program.spec, launch
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
        return Place(launch=self._launch, strides=self._strides[name], maps=self._maps[name], turned=_turned(self._spec, name))

    def put(self, name: str, value: int) -> None:
        """Writes a number, by what it is of."""
        for pack, offset in self._scalars[name]:
            pack(self._launch.record, offset, value)


def _turned(spec: Spec, name: str) -> Callable[[Extents, int], Extents]:
    if name not in ROLES:
        return _as_it_is
    order = spec.order_of(name)
    if not order.packed and order.to_rows_first == (0, 1, 2, 3):
        return _as_it_is
    turned = operator.itemgetter(*order.to_rows_first)
    return (lambda axes, first: turned((first, *axes))) if order.packed else (lambda axes, _: turned(axes))


def _as_it_is(axes: Extents, _: int) -> Extents:
    return axes
