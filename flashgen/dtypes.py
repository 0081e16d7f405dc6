"""Element types, one row each, with their names in NumPy, in CUDA and on the tensor cores."""

import ctypes
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np


@dataclass(frozen=True)
class DType:
    """An element type.

    >>> by_name("bfloat16").bytes
    2
    """

    name: str
    bytes: int
    cuda: str  # storage type in emitted text
    mma: str | None  # operand type of mma and wgmma, of float32's planes too; None: not on tensor cores
    rounding: float  # unit roundoff
    operand: str | None = None  # how it becomes an operand of products: native, planes; None: not on tensor cores
    k_step: int = 0  # columns of q and k, or keys, that one mma or wgmma sums up

    @cached_property
    def numpy(self) -> np.dtype[Any]:
        """The dtype of NumPy, that of ml_dtypes for bfloat16."""
        if self.name == "bfloat16":
            import ml_dtypes

            found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
            return found
        return np.dtype(self.name)

    @property
    def multiplied(self) -> "DType":
        """The element type that products multiply in its place: 16 bits are taken as they are, float32 becomes planes of float16.

        >>> by_name("float32").multiplied.name
        'float16'
        """
        return next(row for row in _ROWS if row.operand == "native" and row.mma == self.mma) if self.operand == "planes" else self


_ROWS = (
    DType("float16", 2, "u16", "f16", 2.0**-11, operand="native", k_step=16),
    DType("bfloat16", 2, "u16", "bf16", 2.0**-8, operand="native", k_step=16),
    DType("float32", 4, "float", "f16", 2.0**-24, operand="planes", k_step=16),
    DType("int32", 4, "int", None, 0.0),
    DType("int64", 8, "long long", None, 0.0),
    DType("bool", 1, "bool", None, 0.0),
    DType("uint8", 1, "unsigned char", None, 0.0),
)
DTYPES = {row.name: row for row in _ROWS}
ATTENTION_DTYPES = tuple(row.name for row in _ROWS if row.operand)  # of q, k, v

# Of arrays that expressions read: what an element is in the language, and in emitted text. A byte is a condition, true where it is not 0;
# a number of 64 bits is compared, or its bits are read, and nothing is computed from it.
READ: dict[str, tuple[Literal["float", "int", "long long", "bool"], str]] = {
    "float32": ("float", "float"),
    "int32": ("int", "int"),
    "int64": ("long long", "long long"),
    "bool": ("bool", "bool"),
    "float16": ("float", "F16"),
    "bfloat16": ("float", "BF16"),
    "uint8": ("bool", "Flag"),
}
TENSOR_DTYPES = tuple(READ)


def by_name(name: str) -> DType:
    """The row of a name."""
    return DTYPES[name]


def float32(x: float) -> float:
    """The number of float32 nearest to x; infinite beyond them all."""
    return ctypes.c_float(x).value


def float32_fault(x: float) -> str:
    """The reason why float32 does not hold a number, rounded; empty if it does."""
    rounded = float32(x)
    if not math.isfinite(rounded):
        return "expected a finite number of float32, at most 3.4e38"
    return "it is 0 in float32, whose least number is 1.4e-45" if x and not rounded else ""


def float32_text(x: float) -> str:
    """The shortest text that is this number of float32.

    >>> float32_text(float32(0.1))
    '0.1'
    """
    return str(np.float32(x))


def number_text(x: float) -> str:
    """A number of a call as messages name it: an integer as it is, a float as `float32_text` says.

    >>> number_text(3), number_text(float32(0.4))
    ('3', '0.4')
    """
    return float32_text(x) if isinstance(x, float) else str(x)
