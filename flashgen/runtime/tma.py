"""Tensor maps, by which the tensor memory accelerator finds a box of rows in an array [B, S, H, D] of any strides."""

import ctypes
import functools
import struct
from typing import Any

import numpy as np

from flashgen.dtypes import by_name
from flashgen.errors import BackendError
from flashgen.runtime.arrays import Layout

ALIGNMENT = 16  # bytes, of the first element and of every stride; CUDA driver API, cuTensorMapEncodeTiled
STRIDE_LIMIT = 2**40  # bytes
_KEPT = 256  # maps of a layout: outputs come from a pool, so addresses come again
_RANK, _BYTES = 4, 128  # of a map
_DIMS, _STRIDES = struct.Struct("<4Q").pack, struct.Struct("<3Q").pack


def addressable(layout: Layout) -> str | None:
    """The reason why the accelerator cannot address an array, or None.

    >>> addressable(Layout((1, 8, 1, 64), (512, 64, 64, 1), "bfloat16", 0, offset=2))
    'the first element is 2 bytes off a multiple of 16'
    """
    size = by_name(layout.dtype).bytes
    if layout.offset % ALIGNMENT:
        return f"the first element is {layout.offset} bytes off a multiple of {ALIGNMENT}"
    if layout.shape[-1] > 1 and layout.strides[-1] != 1:
        return f"the last axis has stride {layout.strides[-1]}, not 1"
    for n, stride in zip(layout.shape[:-1], layout.strides[:-1], strict=True):
        if n > 1 and stride <= 0:
            return f"an axis has stride {stride}"
        if n > 1 and (stride * size % ALIGNMENT or stride * size >= STRIDE_LIMIT):
            return f"an axis has a stride of {stride * size} bytes, not a multiple of {ALIGNMENT} below 2^40"
    return None


class Map:
    """A map of an array that moves boxes of (columns, rows), swizzled over the bytes of a box row: 128 bytes for each address.

    Coordinates are (column, row, head, batch), or (column, head, row, batch) where boxes have the rows of the heads of a group, one token
    after the other; outside, reads give zero and writes are dropped. One thread at a time may use it.
    """

    def __init__(self, layout: Layout, box: tuple[int, int], group: int = 0):
        """`layout`: [B, S, H, D], addressable. `group`: heads of a box, among which its rows are divided; 0: it is of one head."""
        sides = (box[0], group, box[1] // group, 1) if group else (*box, 1, 1)
        self._encode, (self._kind, self._size, self._fixed), self._grouped = _encode_tiled(), _fixed(layout.dtype, sides), group > 0
        memory = np.zeros(_BYTES + 64, np.uint8)
        aligned = memory[-memory.ctypes.data % 64 :][:_BYTES]  # CUtensorMap is aligned to 64 bytes
        self._memory, self._place = memoryview(aligned), ctypes.c_void_p(aligned.ctypes.data)  # type: ignore[arg-type]  # see Launch
        self._address = ctypes.c_void_p()
        self._lies: tuple[tuple[bool, ...], tuple[int, ...]] | None = None
        self.lay(layout.shape, layout.strides)

    def lay(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        """The array lies so from now on; an axis of one element, or of rows without one, whose stride means nothing, gets a legal one."""
        (batches, rows, heads, columns), (batch, row, head, _) = shape, strides
        if self._grouped:
            rows, heads, row, head = heads, rows, head, row
        lies = (rows > 1, heads > 1, batches > 1), (row, head, batch)
        if lies != self._lies:  # a cache that grows has other rows alone
            self._lies = lies
            self._strides = _STRIDES(*(step * self._size if several and step else ALIGNMENT for several, step in zip(*lies, strict=True)))
        self._dims = _DIMS(columns, max(1, rows), heads, batches)  # of no key nothing is read
        self._kept: dict[int, bytes] = {}

    def __call__(self, pointer: int) -> bytes:
        found = self._kept.get(pointer)
        if found is None:
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            self._address.value = pointer
            if status := self._encode(self._place, self._kind, _RANK, self._address, self._dims, self._strides, *self._fixed):
                raise _refusal(status)
            found = self._kept[pointer] = bytes(self._memory)
        return found


@functools.cache
def _fixed(dtype: str, box: tuple[int, ...]) -> tuple[int, int, tuple[bytes | int, ...]]:
    """The element type, its bytes, and what the driver is told after sizes and strides."""
    from cuda.bindings import driver

    kind = getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{dtype.upper()}")
    choices = (
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{box[0] * by_name(dtype).bytes}B"),
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    steps = (1, 1, 1, 1)  # elements
    return int(kind), by_name(dtype).bytes, (struct.pack("<4I", *box), struct.pack("<4I", *steps), *map(int, choices))


@functools.cache
def _encode_tiled() -> Any:
    """cuTensorMapEncodeTiled of the driver's library itself: the bindings, which wrap each number, take several times as long."""
    return ctypes.PyDLL("libcuda.so.1").cuTensorMapEncodeTiled


def _refusal(status: int) -> BackendError:
    from cuda.bindings import driver

    return BackendError(f"the driver refused a tensor map: {driver.CUresult(status).name}")
