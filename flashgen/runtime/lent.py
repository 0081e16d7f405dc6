"""Memory of a GPU that another library lends for the time of a call, as XLA does: arrays that are an address and a shape, and no more."""

import functools
import math
import struct
from dataclasses import dataclass, replace
from types import EllipsisType
from typing import Any, NamedTuple

import numpy as np

from flashgen.dtypes import by_name
from flashgen.errors import CallError
from flashgen.runtime.arrays import FAMILIES, Key, Layout, contiguous_strides
from flashgen.runtime.device import check, device


@dataclass(slots=True)
class Lent:
    """A row-major array, and the stream in which work on it is ordered."""

    pointer: int
    shape: tuple[int, ...]
    dtype: str
    device: int
    stream: int
    result: int = 0  # where a graph captures the call: an address that it writes to, which tells whose its scratch is

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def reshape(self, *shape: int) -> "Lent":
        """The same elements in another shape."""
        return replace(self, shape=shape)

    def __setitem__(self, every: EllipsisType, value: float) -> None:
        """Makes all elements the same: zeros, or those of a float32 array any number."""
        from cuda.bindings import driver

        assert not value or self.dtype == "float32"
        (bits,) = struct.unpack("<I", struct.pack("<f", value))
        if count := math.prod(self.shape):
            with device(self.device).active():
                if value:
                    check(*driver.cuMemsetD32Async(self.pointer, bits, count, self.stream))
                else:
                    check(*driver.cuMemsetD8Async(self.pointer, 0, count * by_name(self.dtype).bytes, self.stream))

    def __getitem__(self, i: int) -> "Lent":
        """A part along the first axis."""
        shape = self.shape[1:]
        return replace(self, shape=shape, pointer=self.pointer + i * math.prod(shape) * by_name(self.dtype).bytes)


_strides = functools.lru_cache(1024)(contiguous_strides)


class LentFamily:
    """Such arrays, whose results the caller gives: what is made is the scratch of a call, and lives as long."""

    def on_gpu(self, x: Lent) -> bool:  # noqa: ARG002
        """True: no other memory is lent."""
        return True

    def locate(self, x: Lent) -> tuple[int, Key]:
        """The address of an array, and the rest of its layout."""
        return x.pointer, (x.shape, _strides(x.shape), x.dtype, x.device, x.pointer & 15)

    def layout(self, key: Key) -> Layout:
        """The layout of a key."""
        return Layout(*key)

    def empty(self, shape: tuple[int, ...], dtype: str, beside: Lent) -> "_Memory":
        """Memory for a new array, on the GPU and in the stream of another one."""
        return _Memory(math.prod(shape) * by_name(dtype).bytes, beside)

    def scratch(self, shape: tuple[int, ...], dtype: str, beside: Lent) -> "_Memory | _Kept":
        """Memory for the kernels of one call; for ever, where a graph captures it, as nobody tells when a graph ends.

        Calls that write to one place follow each other, or their results would be nobody's, so they may share scratch too.
        """
        if not beside.result:
            return self.empty(shape, dtype, beside)
        return _kept(beside.device, beside.result, math.prod(shape) * by_name(dtype).bytes)

    def pointer(self, x: "Lent | _Memory | _Kept") -> int:
        """The address of an array, or of memory."""
        return x.pointer

    def stream(self, beside: Lent) -> int:
        """The stream that came with an array."""
        return beside.stream

    def to_numpy(self, x: Lent) -> np.ndarray[Any, Any]:
        """Raises CallError: looking at values waits for them, which a program of XLA does not."""
        raise CallError(f"an array of {x.shape} lies in memory that is lent for a call: lengths cannot be looked at there")

    def from_numpy(self, x: np.ndarray[Any, Any]) -> Any:
        """Raises CallError: the caller gives the results."""
        raise CallError(f"an array of {x.shape} has no place in memory that is lent for a call")


FAMILIES[Lent] = LentFamily()


class _Kept(NamedTuple):
    """Memory that is never given back."""

    pointer: int


@functools.cache
def _kept(ordinal: int, result: int, nbytes: int) -> _Kept:  # noqa: ARG001
    """Memory of calls on a GPU that write to an address."""
    from cuda.bindings import driver

    with device(ordinal).aside():
        return _Kept(int(check(*driver.cuMemAlloc(max(1, nbytes)))))


class _Memory:
    """Memory of the driver's pool, from now on in a stream until nothing refers to it any more."""

    def __init__(self, nbytes: int, beside: Lent):
        from cuda.bindings import driver

        self._free, self._stream, self._device = driver.cuMemFreeAsync, beside.stream, beside.device
        with device(beside.device).active():
            self.pointer = int(check(*driver.cuMemAllocAsync(max(1, nbytes), beside.stream)))

    def __del__(self) -> None:
        if hasattr(self, "pointer"):
            with device(self._device).active():
                self._free(self.pointer, self._stream)
