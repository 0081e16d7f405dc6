"""The host's form of a TMA tensor map: the 128 bytes that the driver would encode."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashgen.errors import BackendError

TENSOR_MAP = np.dtype(
    {
        "names": ["address", "strides", "dims", "box", "rank", "element_bytes", "swizzle_rows", "magic"],
        "formats": ["u8", ("i8", 4), ("u4", 5), ("u4", 5), "u4", "u4", "u4", "u4"],
        "offsets": [0, 8, 40, 60, 80, 84, 88, 92],
        "itemsize": 128,
    }
)  # struct TensorMap in host/bulk_copies.hpp
MAGIC = 0x544D4150
ALIGNMENT = 16  # bytes, of the address and the strides


def tensor_map(array: NDArray[Any], box: tuple[int, ...], swizzle: int = 128) -> NDArray[np.uint8]:
    """A map over an array of two to five dimensions, as 128 bytes; `box` has as many numbers, outermost first like the array's shape.

    `swizzle` is 128, 64 or 32 bytes, or 0 for none. The driver's rules hold: the last axis dense, 16-byte aligned strides and address,
    a box of at most 256 elements a side whose rows fit the swizzle. Raises BackendError. Source: CUDA driver API, cuTensorMapEncodeTiled.

    >>> tensor_map(np.zeros((64, 32), np.float16), (8, 32), swizzle=64).nbytes
    128
    """
    rank, size = array.ndim, array.itemsize
    row = box[-1] * size
    strides = [s if n > 1 else ALIGNMENT for n, s in zip(array.shape, array.strides, strict=True)]  # of one element: any will do
    rules = {
        f"2 to 5 dimensions, not {rank}, and a box of as many numbers, not {len(box)}": 2 <= rank <= 5 and len(box) == rank,
        f"no dimension of length 0, not {array.shape}": array.size > 0,
        f"a dense last axis, not strides {array.strides}": array.shape[-1] == 1 or array.strides[-1] == size,
        f"strides in multiples of 16 bytes, not {array.strides}": all(s % ALIGNMENT == 0 and s > 0 for s in strides[:-1]),
        f"an address in multiples of 16 bytes, not {array.ctypes.data:#x}": array.ctypes.data % ALIGNMENT == 0,
        f"a box of 1 to 256 elements a side, not {box}": all(1 <= n <= 256 for n in box),
        f"box rows in multiples of 16 bytes, not {row}": row % 16 == 0,
        f"a swizzle of 128, 64, 32 or 0 bytes, not {swizzle}": swizzle in (0, 32, 64, 128),
        f"box rows of at most the swizzle's {swizzle} bytes, not {row}": not swizzle or row <= swizzle,
    }
    for rule, kept in rules.items():
        if not kept:
            raise BackendError(f"a tensor map takes {rule}")
    one = np.zeros((), TENSOR_MAP)
    one["address"] = array.ctypes.data
    one["strides"][: rank - 1] = strides[-2::-1]
    one["dims"] = one["box"] = 1
    one["dims"][:rank], one["box"][:rank] = array.shape[::-1], box[::-1]
    one["rank"], one["element_bytes"], one["magic"] = rank, size, MAGIC
    one["swizzle_rows"] = max(1, swizzle // 16)
    return one.reshape(1).view(np.uint8)
