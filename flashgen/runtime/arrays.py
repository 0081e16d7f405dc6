"""Arrays of other libraries: finds where they lie, and makes new ones of the same kind.

A family is a library; NumPy, CuPy and PyTorch are read directly, JAX and everything with DLPack or `__cuda_array_interface__` through CuPy
or NumPy without a copy. A library is imported only when one of its arrays comes in.
"""

import functools
import math
import sys
from typing import Any, NamedTuple, Protocol

import numpy as np

from flashgen.dtypes import DTYPES, by_name
from flashgen.errors import BackendError, CallError
from flashgen.runtime import dlpack

_DLPACK_HOST = 1  # kDLCPU
_SUBCLASSES = (  # of libraries: the plain array, and how to come by it
    ("numpy", "ndarray", "{0}.filled(0) of a masked array, or np.asarray({0})"),
    ("cupy", "ndarray", "{0}.view(cupy.ndarray)"),
    ("torch", "Tensor", "{0}.to_local() of a DTensor, {0}.get_data() of a masked tensor, or {0}.as_subclass(torch.Tensor)"),
)


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides, in elements, of an array of this shape without gaps."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


class Layout(NamedTuple):
    """All of an array that a prepared call depends on; its address may change from call to call."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    dtype: str
    device: int | None  # ordinal of the GPU; None: host memory
    offset: int  # bytes from the last multiple of 16 to the first element

    @property
    def contiguous(self) -> bool:
        """True if elements lie in order without gaps; there may be none."""
        expected = contiguous_strides(self.shape)
        return 0 in self.shape or all(n == 1 or have == want for n, have, want in zip(self.shape, self.strides, expected, strict=True))

    @property
    def row_alignment(self) -> int:
        """The alignment of rows along the last axis, in bytes, at most 16; the size of an element if that axis has gaps."""
        size = by_name(self.dtype).bytes
        if self.shape[-1] > 1 and self.strides[-1] != 1:
            return size
        return math.gcd(16, self.offset, *(s * size for n, s in zip(self.shape[:-1], self.strides[:-1], strict=True) if n > 1))


Key = tuple[Any, ...]  # shape, strides, dtype as the library has them; device, offset as in Layout


class Like(NamedTuple):
    """The part of an array's layout that is read without touching the array, quick to make and to compare."""

    name: str
    family: "Family"
    key: Key

    @property
    def layout(self) -> Layout:
        """The layout of the array. Raises CallError if a call cannot take it."""
        try:
            return self.family.layout(self.key)
        except CallError as error:
            raise CallError(f"{self.name}: {error}") from None


class Family(Protocol):
    """The questions that flashgen asks of a library of arrays."""

    def on_gpu(self, x: Any) -> bool:
        """True if an array lies on a GPU."""

    def locate(self, x: Any) -> tuple[int, Key]:
        """The address of an array, and the key of its layout."""

    def layout(self, key: Key) -> Layout:
        """The layout that a key stands for. Raises CallError where a call cannot take it."""

    def to_numpy(self, x: Any) -> np.ndarray[Any, Any]:
        """A copy in NumPy, or a view of host memory."""

    def from_numpy(self, x: np.ndarray[Any, Any]) -> Any:
        """An array of the library that holds what NumPy's does."""


class DeviceFamily(Family, Protocol):
    """A Family whose arrays lie on a GPU."""

    def empty(self, shape: tuple[int, ...], dtype: str, beside: Any) -> Any:
        """A new array on the GPU of another one."""

    def scratch(self, shape: tuple[int, ...], dtype: str, beside: Any) -> Any:
        """A new array for the kernels of one call alone, on the GPU of another one."""

    def pointer(self, x: Any) -> int:
        """The address of an array that the library made."""

    def stream(self, beside: Any) -> int:
        """The current stream of the GPU of an array."""


def _layout_in_bytes(key: Key) -> Layout:
    """The layout of a key with strides in bytes, as NumPy and CuPy have them."""
    shape, strides, dtype, device, offset = key
    return Layout(shape, _elements(strides, dtype.itemsize), name_of(dtype), device, offset)


@functools.lru_cache(1024)
def _elements(strides: tuple[int, ...], size: int) -> tuple[int, ...]:
    """The strides in elements, for strides in bytes. Raises CallError if they are not whole elements."""
    if any(s % size for s in strides):
        raise CallError(f"strides of {strides} bytes are not whole elements of {size}: pass a contiguous copy")
    return tuple(s // size for s in strides)


@functools.cache
def name_of(dtype: Any) -> str:
    """The name of a dtype of NumPy or PyTorch."""
    return str(dtype).removeprefix("torch.")


class NumpyFamily:
    """Arrays of NumPy, in the memory of the host."""

    def on_gpu(self, x: Any) -> bool:  # noqa: ARG002
        """False: arrays of NumPy lie on the host."""
        return False

    def locate(self, x: Any) -> tuple[int, Key]:
        """The address of an array, and the key of its layout."""
        pointer = x.__array_interface__["data"][0]
        return pointer, (x.shape, x.strides, x.dtype, None, pointer & 15)

    def layout(self, key: Key) -> Layout:
        """The layout that a key stands for. Raises CallError where a call cannot take it."""
        return _layout_in_bytes(key)

    def to_numpy(self, x: Any) -> np.ndarray[Any, Any]:
        """The array itself."""
        return np.asarray(x)

    def from_numpy(self, x: np.ndarray[Any, Any]) -> Any:
        """The array itself."""
        return x


class CupyFamily:
    """Arrays of CuPy, in the memory of a GPU."""

    def __init__(self) -> None:
        self.cupy = cupy()
        self.current_device = self.cupy.cuda.runtime.getDevice
        self.current_stream = self.cupy.cuda.get_current_stream
        self.dtypes = {name: dtype.numpy for name, dtype in DTYPES.items()}

    def on_gpu(self, x: Any) -> bool:  # noqa: ARG002
        """True: arrays of CuPy lie on a GPU."""
        return True

    def locate(self, x: Any) -> tuple[int, Key]:
        """The address of an array, and the key of its layout."""
        data = x.data
        pointer = data.ptr
        return pointer, (x.shape, x.strides, x.dtype, data.device_id, pointer & 15)

    def layout(self, key: Key) -> Layout:
        """The layout that a key stands for. Raises CallError where a call cannot take it."""
        return _layout_in_bytes(key)

    def empty(self, shape: tuple[int, ...], dtype: str, beside: Any) -> Any:
        """A new array on the GPU of another one."""
        device = beside.data.device_id
        if device == self.current_device():
            return self.cupy.ndarray(shape, self.dtypes[dtype])
        with self.cupy.cuda.Device(device):
            return self.cupy.ndarray(shape, self.dtypes[dtype])

    def pointer(self, x: Any) -> int:
        """The address of an array that the library made."""
        return x.data.ptr  # type: ignore[no-any-return]

    def scratch(self, shape: tuple[int, ...], dtype: str, beside: Any) -> Any:
        """A new array. What a graph captures is the graph's: the pool would give it to others, though replays still write there."""
        device, stream = beside.data.device_id, self.stream(beside)
        if not stream or not self.cupy.cuda.runtime.streamIsCapturing(stream):
            return self.empty(shape, dtype, beside)
        numpy = self.dtypes[dtype]
        with self.cupy.cuda.Device(device):
            return self.cupy.ndarray(shape, numpy, self.cupy.cuda.malloc_async(math.prod(shape) * numpy.itemsize))

    def stream(self, beside: Any) -> int:
        """The current stream of the GPU of an array."""
        return self.current_stream(beside.data.device_id).ptr  # type: ignore[no-any-return]

    def to_numpy(self, x: Any) -> np.ndarray[Any, Any]:
        """A copy on the host."""
        return np.asarray(self.cupy.asnumpy(x))

    def from_numpy(self, x: np.ndarray[Any, Any]) -> Any:
        """A copy on the current GPU."""
        return self.cupy.asarray(x)


NUMPY = NumpyFamily()


@functools.cache
def cupy() -> Any:
    """The module. Raises BackendError where it is missing."""
    try:
        import cupy
    except ImportError as error:
        raise BackendError(
            f"no CuPy here ({error}): pip install 'flashgen[cuda13]', or 'flashgen[cuda12]' for drivers before 580"
        ) from None
    return cupy


@functools.cache
def cupy_family() -> CupyFamily:
    """The family of CuPy's arrays. Raises BackendError where CuPy is missing."""
    return CupyFamily()


class _Families(dict[type, Any]):
    """The Family of each type of array, a DeviceFamily for arrays on a GPU; None for those that come and go through DLPack."""

    def __missing__(self, kind: type) -> Family | None:
        found = self[kind] = _recognise(kind)
        return found


FAMILIES = _Families()


def _recognise(kind: type) -> Family | None:
    """The family of arrays of exactly this type: a subclass may mean something else."""
    if kind in (np.ndarray, np.memmap):
        return NUMPY
    if "cupy" in sys.modules and kind is cupy().ndarray:
        return cupy_family()
    if "torch" in sys.modules:
        from flashgen.runtime import pytorch

        return pytorch.TorchFamily() if kind in pytorch.kinds() else None
    return None


def liken(x: Any, name: str) -> Like:
    """The Like of an array. Raises CallError for one that a call cannot take, by its name."""
    family = FAMILIES[type(x)]
    try:
        return Like(name, family, family.locate(x)[1])
    except CallError as error:
        raise CallError(f"{name}: {error}") from None


def adopt(x: Any, name: str) -> Any:
    """An array of a family that shares the memory of `x`. Raises CallError for what is no array."""
    if FAMILIES[type(x)]:
        return x
    for library, plain, advice in _SUBCLASSES:
        if library in sys.modules and isinstance(x, getattr(sys.modules[library], plain)):
            what = f"{name} is a {type(x).__name__}, an array of {library} with a meaning of its own, as a mask, units or shards"
            raise CallError(f"{what}, which no kernel knows: pass the plain numbers, as {advice.format(name)}")
    if hasattr(x, "__cuda_array_interface__"):
        return cupy().asarray(x)
    if not hasattr(x, "__dlpack_device__"):
        known = "NumPy, CuPy, PyTorch and JAX arrays are, and whatever has __dlpack__ or __cuda_array_interface__"
        raise CallError(f"{name} is a {type(x).__name__}, not an array: {known}")
    kind, _ = x.__dlpack_device__()
    if kind != _DLPACK_HOST:
        return cupy().from_dlpack(x)
    return np.asarray(x) if hasattr(x, "__array__") else dlpack.read(x, name)


def give_back(result: Any, like: Any) -> Any:
    """The result as an array of the library of `like`, which had to be adopted: JAX's; others get what CuPy or NumPy has.

    Such libraries do not share the stream, so this waits until the result is there.
    """
    if not isinstance(result, np.ndarray):
        cupy().cuda.get_current_stream(result.data.device_id).synchronize()
    if type(like).__module__.partition(".")[0] not in ("jax", "jaxlib"):
        return result
    jax = sys.modules["jax"]
    return jax.numpy.asarray(result) if isinstance(result, np.ndarray) else jax.dlpack.from_dlpack(result)
