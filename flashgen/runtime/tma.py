"""Tensor maps: how the tensor memory accelerator finds a box of rows in an array [B, S, H, D] of any strides."""

import functools
from collections.abc import Callable
from typing import Any

from flashgen.dtypes import by_name
from flashgen.errors import BackendError
from flashgen.runtime.arrays import Layout

ALIGNMENT = 16  # bytes, of the first element and of every stride; CUDA driver API, cuTensorMapEncodeTiled
_STRIDE_LIMIT = 2**40  # bytes
_KEPT = 256  # layouts, and maps of each: outputs come from a pool, so addresses come again


def addressable(layout: Layout) -> str | None:
    """Why the accelerator cannot address an array, or None.

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
        if n > 1 and (stride * size % ALIGNMENT or stride * size >= _STRIDE_LIMIT):
            return f"an axis has a stride of {stride * size} bytes, not a multiple of {ALIGNMENT} below 2^40"
    return None


@functools.lru_cache(_KEPT)
def encoder(layout: Layout, box: tuple[int, int]) -> Callable[[int], bytes]:
    """By address, the 128 bytes of a map that moves boxes of (columns, rows), swizzled over the bytes of a box row.

    `layout`: [B, S, H, D], addressable. Coordinates are (column, row, head, batch); outside, reads give zero and writes are dropped.
    """
    assert addressable(layout) is None, addressable(layout)
    from cuda.bindings import driver

    dtype = by_name(layout.dtype)
    batch, row, head, _ = _strides(layout)
    batches, rows, heads, columns = layout.shape
    fixed = (
        [driver.cuuint64_t(n) for n in (columns, rows, heads, batches)],
        [driver.cuuint64_t(s) for s in (row, head, batch)],
        [driver.cuuint32_t(n) for n in (*box, 1, 1)],
        [driver.cuuint32_t(1)] * 4,
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{box[0] * dtype.bytes}B"),
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    kind = getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{dtype.name.upper()}")

    @functools.lru_cache(_KEPT)
    def at(pointer: int) -> bytes:
        return _record(*driver.cuTensorMapEncodeTiled(kind, 4, pointer, *fixed))

    return at


def _strides(layout: Layout) -> tuple[int, ...]:
    """In bytes; an axis of one element, whose stride means nothing, gets a legal one."""
    size = by_name(layout.dtype).bytes
    return tuple(stride * size if n > 1 else ALIGNMENT for n, stride in zip(layout.shape, layout.strides, strict=True))


def _record(status: Any, tensor_map: Any) -> bytes:
    if int(status):
        raise BackendError(f"the driver refused a tensor map: {status.name}")
    return b"".join(int(word).to_bytes(8, "little") for word in tensor_map.opaque)
