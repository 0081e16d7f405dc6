"""Nodes evaluated with NumPy: integers in int64, floats in the type of the arrays given."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from flashgen.expr.language.deciding import decides
from flashgen.expr.language.functions import row
from flashgen.expr.language.nodes import COMPUTED, Call, Const, Load, Name, Node, Summation


def evaluate(node: Node, values: Mapping[str, Any]) -> Any:
    """The value of an expression where its names and tensors have `values`, which broadcast.

    >>> s = np.float32([[1.0, 2.0]])
    >>> evaluate(Call("*", (Name("s", "float"), Const(0.5, "float")), "float"), {"s": s})
    array([[0.5, 1. ]], dtype=float32)

    Floats are float64 if an array of `values` is, or none is of floats; else float32, and so are always those that decide something.
    An index outside a tensor is clamped to it; one without elements, as of no key, reads as 0.
    """
    floats = [v.dtype for v in values.values() if isinstance(v, np.ndarray) and v.dtype.kind == "f"]
    with np.errstate(all="ignore"):
        return _Evaluation(values, np.result_type(np.float32, *floats) if floats else np.dtype(np.float64))(node)


class _Evaluation:
    def __init__(self, values: Mapping[str, Any], float_type: np.dtype[Any]):
        self.values = values
        self.float_type = float_type

    def type(self, name: str, decided: bool) -> np.dtype[Any]:
        if name == "float":
            return np.dtype(np.float32) if decided else self.float_type
        return np.dtype(np.bool_ if name == "bool" else np.int64)

    def __call__(self, node: Node, decided: bool = False) -> Any:
        """The value; `decided`: something is by it."""
        match node:
            case Const(value, type):
                return self.type(type, decided).type(value)
            case Name(name, type):
                return np.asarray(self.values[name], self.type(type, decided and name not in COMPUTED))
            case Load(tensor, indices, type):
                array = np.asarray(self.values[tensor])
                clamped = [np.clip(self(i), 0, max(0, size - 1)) for i, size in zip(indices, array.shape, strict=True)]
                if not array.size:
                    return np.zeros(np.broadcast_shapes(*(i.shape for i in clamped)), self.type(type, decided))
                return array[tuple(clamped)].astype(self.type(type, decided))
            case Summation():
                return self(node.unrolled, decided)
            case Call("float", (x,)):
                return self(x).astype(self.type("float", decided))
            case Call(op, args):
                found = row(op)
                assert found, op
                return found.numpy(*(self(x, decides(op, decided)) for x in args))
        raise AssertionError(node)
