"""The value of an expression by the rules of the language alone: the reference judges kernels by it, and shares nothing with them.

Integers are exact. Floats are float64 within the range of float32: what passes it is infinite. Where a float decides, as the argument of
`floor` or an operand of a comparison, each operation is rounded to float32; but not what depends on s or o, nor what comes out of an
exponential, a logarithm, tanh and the like, which no two machines round alike.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashgen.expr.language.deciding import approximate
from flashgen.expr.language.deciding import decides as decided
from flashgen.expr.language.function import Function
from flashgen.expr.language.functions import row
from flashgen.expr.language.nodes import COMPUTED, LONG, Call, Const, Load, Name, Node, Summation

Array = NDArray[Any]

LARGEST = float(np.finfo(np.float32).max)
OVERFLOW = LARGEST + 2.0**103  # from here on the nearest float32 is infinite
EXACT = ("b", "h", "hk", "q_idx", "kv_idx", "v_idx")  # an index that is one of these needs an axis of its extent, or of 1


def meaning(node: Node, values: Mapping[str, Any]) -> Array:
    """The value of an expression where its names and tensors have `values`, which broadcast: int64, float64 or bool.

    >>> meaning(Call("*", (Name("x", "float"), Const(0.1, "float")), "float"), {"x": 3}).tolist()
    0.30000000447034836

    An index outside a tensor is clamped to it; one that is b, h, hk, q_idx, kv_idx or v_idx itself reads an axis of 1 as if it
    were repeated.
    Raises OverflowError for an integer that 64 bits do not hold, IndexError for an axis that such an index leaves.
    """
    with np.errstate(all="ignore"):
        return _value(node, values, False)


def clamped(load: Load, values: Mapping[str, Any]) -> tuple[Array, ...]:
    """The indices that a read takes, one array an axis, clamped to the tensor. Raises IndexError as `meaning` does."""
    return tuple(_inside(i, size, values) for i, size in zip(load.indices, np.shape(values[load.tensor]), strict=True))


def _value(node: Node, values: Mapping[str, Any], decides: bool) -> Array:
    match node:
        case Const(value, type):
            return _typed(value, type)
        case Name(name) if name in COMPUTED:
            return np.asarray(values[name], np.float64)
        case Name(name, type):
            return _typed(values[name], type)
        case Load(tensor, _, type):
            return _typed(np.asarray(values[tensor])[clamped(node, values)], type)
        case Summation():
            return _value(node.unrolled, values, decides)
        case Call("float", (x,)):
            number = _value(x, values, False)
            return number.astype(np.float32).astype(np.float64) if decides else number.astype(np.float64)
        case Call(op, args, type):
            parts = [_value(x, values, decided(op, decides)) for x in args]
            found = row(op)
            assert found, op
            if type == "bool":
                return np.asarray(found.definition(*parts))
            return _integer(found, parts) if type in ("int", LONG) else _float(found, parts, decides and not approximate(node))
    raise AssertionError(node)


def _typed(value: Any, type: str) -> Array:
    """A number of a text, of a call or of a tensor: floats are those of float32."""
    if type == "float":
        return np.asarray(value, np.float32).astype(np.float64)
    return np.asarray(value).astype(np.bool_ if type == "bool" else np.int64)


def _inside(index: Node, size: int, values: Mapping[str, Any]) -> Array:
    i = _value(index, values, False)
    if isinstance(index, Name) and index.name in EXACT and size > 1 and i.size and i.max() >= size:
        raise IndexError(f"{index.name} reaches {i.max()} on an axis of {size}")
    return np.minimum(np.maximum(i, 0), size - 1)


def _integer(row: Function, parts: list[Array]) -> Array:
    if row.name in ("+", "-", "*") and np.any(np.abs(row.definition(*(x.astype(np.float64) for x in parts))) >= 2.0**63):
        raise OverflowError(f"a result of {row.name} passes 64 bits")
    return np.asarray(row.definition(*parts), np.int64)


def _float(row: Function, parts: list[Array], rounded: bool) -> Array:
    """A float in float64, then taken to float32: + - * / and sqrt rounded twice are rounded right, as 53 bits are more than twice 24."""
    x = np.asarray(row.definition(*parts))
    return x.astype(np.float32).astype(np.float64) if rounded else in_range(x)


def in_range(x: Array) -> Array:
    """float64 as it is, but infinite where float32 is."""
    return np.where(np.abs(x) < OVERFLOW, x, np.where(np.isnan(x), x, np.copysign(np.inf, x)))
