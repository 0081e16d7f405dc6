"""Arrays as a kernel meets them: memory ends with them, and the race checker keeps a shadow of each."""

import ctypes
import functools
import mmap
import struct
import sys
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

PROT_NONE = 0
ALIGNMENT = 16  # bytes
LARGE_PAGE = 2 << 20  # bytes
LARGE = LARGE_PAGE // 4  # bytes of an array from which on touching small pages takes longer than zeroing a large one
SPARSE = 1 << 30  # bytes of an array from which on it is taken to be touched here and there
NO_RESERVE = 0x4000  # MAP_NORESERVE of Linux, which Python 3.11 does not name: addresses alone, however many
GRANULE = 32  # bytes that the checker keeps for 16 of an array, behind all of them again for each word: host/global_shadow.hpp
SHADOW = GRANULE + 4 * GRANULE  # memory that it does not need stays untouched
ACCESS = struct.Struct("<iBBHIHH")  # block, agent, launch, bytes, time, place, more: the last write of a granule, then the last read
OWN_WORDS = 16  # of the read's `more`: its words have accesses of their own


class Write(NamedTuple):
    """A write to an array: the block, who of it, and the number of its place in the kernel."""

    block: int
    agent: int
    place: int


@dataclass(frozen=True, eq=False)
class Watched:
    """An array that the kernels of a call may touch.

    `use`: "constant" was never written by a kernel, "read" is not by these, "update" holds values before the first kernel, "fill" is
    undefined until it is written.

    >>> Watched(np.zeros(64, np.float32), "fill").begin % 4
    0
    """

    array: NDArray[Any]
    use: Literal["constant", "read", "update", "fill"] = "update"
    shadow: NDArray[np.uint8] = field(init=False)  # who wrote and read what, from one kernel of the call to the next

    def __post_init__(self) -> None:
        granules = 0 if self.use in ("constant", "read") else self.nbytes // 16 + 2
        object.__setattr__(self, "shadow", anonymous(granules * SHADOW)[: granules * SHADOW])

    def last_write(self, at: int) -> "Write | None":
        """The last write to the byte at an address, which is one of the array; None where nobody noted one."""
        granules = self.nbytes // 16 + 2
        granule = at // 16 - self.begin // 16
        if not self.shadow.size:
            return None
        *_, more = ACCESS.unpack_from(self.shadow.data, granule * GRANULE + ACCESS.size)
        place_of = granules * GRANULE + (4 * granule + at // 4 % 4) * GRANULE if more & OWN_WORDS else granule * GRANULE
        block, agent, launch, _, _, place, _ = ACCESS.unpack_from(self.shadow.data, place_of)
        return Write(block, agent, place) if launch else None

    @property
    def begin(self) -> int:
        """The address of its first byte."""
        return np.lib.array_utils.byte_bounds(self.array)[0]

    @property
    def nbytes(self) -> int:
        """The number of bytes that it spans."""
        begin, end = np.lib.array_utils.byte_bounds(self.array)
        return end - begin if self.array.size else 0


@functools.cache
def libc() -> ctypes.CDLL:
    """The C library of this process."""
    return ctypes.CDLL(None)


def anonymous(nbytes: int) -> NDArray[np.uint8]:
    """Whole pages, zero once they are touched, that begin at a multiple of LARGE_PAGE where the system may use large ones."""
    room = -(-max(nbytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
    spare = LARGE_PAGE if LARGE <= nbytes < SPARSE else 0
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # shared ones take longer, and are never large
    memory = mmap.mmap(-1, room + spare, flags=flags | (NO_RESERVE if nbytes >= SPARSE and sys.platform == "linux" else 0))
    if hasattr(mmap, "MADV_HUGEPAGE") and nbytes >= LARGE:
        memory.madvise(mmap.MADV_HUGEPAGE if spare else mmap.MADV_NOHUGEPAGE)
    whole = np.frombuffer(memory, np.uint8)
    start = -whole.ctypes.data % LARGE_PAGE if spare else 0
    return whole[start : start + room]


def fenced(nbytes: int, residue: int = 0) -> NDArray[np.uint8]:
    """Bytes, zero, between two pages that nobody can touch: `residue` bytes after a multiple of 16, and as late as that allows."""
    pages = -(-(nbytes + ALIGNMENT) // mmap.PAGESIZE)
    begin = mmap.PAGESIZE * (1 + -(pages + 1) % (LARGE_PAGE // mmap.PAGESIZE) * (nbytes >= LARGE))
    end = begin + pages * mmap.PAGESIZE  # of a large array at a multiple of LARGE_PAGE
    whole = anonymous(end + mmap.PAGESIZE)
    for page in (begin - mmap.PAGESIZE, end):
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
