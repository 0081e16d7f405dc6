"""Arrays in host memory that come over DLPack alone, bfloat16 among them, which NumPy reads from nobody."""

import ctypes
from typing import Any

import numpy as np

from flashgen.dtypes import by_name
from flashgen.errors import CallError

_CODE, _BITS = 20, 21  # bytes from the beginning of a DLManagedTensor, in dlpack.h: of what kind an element is, and how wide
_UINT, _BFLOAT = 1, 4  # DLDataTypeCode
_NAME = b"dltensor"  # of a capsule


class _Capsule:
    """The capsule of a producer, for another consumer."""

    def __init__(self, capsule: Any):
        self.capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def read(x: Any, name: str) -> np.ndarray[Any, Any]:
    """The array, in the memory of `x`. Raises CallError, by name, for what DLPack has and NumPy has not."""
    try:
        capsule = x.__dlpack__()
        address = _pointer(capsule, _NAME)
        code, bits = ((ctypes.c_uint8.from_address(address + at)) for at in (_CODE, _BITS))
        if bfloat := (code.value, bits.value) == (_BFLOAT, 16):
            code.value = _UINT  # the record is the consumer's
        found: np.ndarray[Any, Any] = np.from_dlpack(_Capsule(capsule))
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise CallError(f"{name}: its DLPack cannot be read ({error}): pass an array of NumPy, CuPy, PyTorch or JAX") from None
    return found.view(by_name("bfloat16").numpy) if bfloat else found


_pointer: Any = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
