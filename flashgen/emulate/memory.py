"""Arrays that end where memory ends: whoever reads or writes past their last element is found."""

import ctypes
import functools
import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

PROT_NONE = 0
ALIGNMENT = 16  # bytes


@functools.cache
def libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def fenced(nbytes: int, residue: int = 0) -> NDArray[np.uint8]:
    """Bytes, zero, between two pages that nobody can touch: `residue` bytes after a multiple of 16, and as late as that allows."""
    room = nbytes + ALIGNMENT
    pages = -(-room // mmap.PAGESIZE)
    whole = np.frombuffer(mmap.mmap(-1, (pages + 2) * mmap.PAGESIZE), np.uint8)
    begin, end = mmap.PAGESIZE, (pages + 1) * mmap.PAGESIZE
    for page in (0, end):
        failed = libc().mprotect(ctypes.c_void_p(whole.ctypes.data + page), ctypes.c_size_t(mmap.PAGESIZE), PROT_NONE)
        assert not failed, "mprotect"
    start = (end - nbytes - residue) // ALIGNMENT * ALIGNMENT + residue
    assert start >= begin
    return whole[start : start + nbytes]


def fence(x: NDArray[Any]) -> NDArray[Any]:
    """A copy of an array in fenced memory, with the same strides and the same alignment."""
    low, high = np.lib.array_utils.byte_bounds(x)
    memory = fenced(high - low if x.size else 0, low % ALIGNMENT)
    copy = np.ndarray(x.shape, x.dtype, memory.data, x.ctypes.data - low, x.strides)
    copy[...] = x
    return copy
