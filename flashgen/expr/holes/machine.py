"""The operations that a kernel has besides the language, a row each; functions are made of them."""

from dataclasses import dataclass
from typing import Any

from flashgen.expr.language.fold import call
from flashgen.expr.language.instructions import Instructions
from flashgen.expr.language.nodes import Call, Const, Node, Type

SPECIAL = Instructions(special=1)
MULTIPLY = Instructions(multiply=1)
OTHER = Instructions(other=1)
NEAREST = Instructions(special=1, multiply=8)  # of a special function, and what rounds it to the nearest


@dataclass(frozen=True)
class Operation:
    """An operation of kernels alone: what the text calls it, and what it costs."""

    cuda: str
    cost: Instructions


OPERATIONS = {
    "fma": Operation("fmaf", MULTIPLY),
    "ptx::exp2": Operation("ptx::exp2", SPECIAL),
    "ptx::log2": Operation("ptx::log2", SPECIAL),
    "ptx::tanh": Operation("ptx::tanh", SPECIAL),
    "ptx::sqrt": Operation("ptx::sqrt", SPECIAL),
    "ptx::inverse": Operation("ptx::inverse", SPECIAL),
    # IEEE: nothing else knows these, so nothing rewrites them.
    "__fadd_rn": Operation("__fadd_rn", MULTIPLY),
    "__fsub_rn": Operation("__fsub_rn", MULTIPLY),
    "__fmul_rn": Operation("__fmul_rn", MULTIPLY),
    "__fdiv_rn": Operation("__fdiv_rn", NEAREST),
    "__fsqrt_rn": Operation("__fsqrt_rn", NEAREST),
    "__int2float_rn": Operation("__int2float_rn", OTHER),
    "__ll2float_rn": Operation("__ll2float_rn", OTHER),
    # Of integers: see templates/device/division.cuh.
    "quotient": Operation("quotient", OTHER),
    "remainder": Operation("remainder", OTHER),
    "key_quotient": Operation("key_quotient", OTHER),
    "key_remainder": Operation("key_remainder", OTHER),
    "wrapped": Operation("wrapped", OTHER),
    "flag_at": Operation("flag_at", OTHER),
    "Divisor": Operation("Divisor", OTHER),
    "__shfl_sync": Operation("__shfl_sync", OTHER),
    "int": Operation("int", OTHER),
    "long long": Operation("long long", OTHER),
}


@dataclass(frozen=True)
class Operand:
    """A float of a kernel, which adds, multiplies, divides and negates as numbers do."""

    node: Node

    def __add__(self, other: "Operand | float") -> "Operand":
        return Operand(call("+", self.node, _node(other)))

    def __radd__(self, other: float) -> "Operand":
        return Operand(call("+", _node(other), self.node))

    def __sub__(self, other: "Operand | float") -> "Operand":
        return Operand(call("-", self.node, _node(other)))

    def __mul__(self, other: "Operand | float") -> "Operand":
        return Operand(call("*", self.node, _node(other)))

    def __rmul__(self, other: float) -> "Operand":
        return Operand(call("*", _node(other), self.node))

    def __truediv__(self, other: "Operand | float") -> "Operand":
        return Operand(call("/", self.node, _node(other)))

    def __rtruediv__(self, other: float) -> "Operand":
        return Operand(call("/", _node(other), self.node))

    def __neg__(self) -> "Operand":
        return Operand(call("neg", self.node))


@dataclass(frozen=True)
class Making:
    """Makes the node of one operation: a machine, as makers take it."""

    op: str
    type: Type

    def itself(self, *args: Any) -> Operand:
        """Makes the operation that this machine is for."""
        return Operand(Call(self.op, tuple(map(_node, args)), self.type))

    def library(self, name: str, *args: Any) -> Operand:
        """Makes a call of a function of CUDA's library."""
        return Operand(call(name, *map(_node, args)))

    def instruction(self, name: str, *args: Any) -> Operand:
        """Makes a float32 instruction of the device vocabulary."""
        return Operand(Call(f"ptx::{name}", tuple(map(_node, args)), "float"))

    def fma(self, *args: Any) -> Operand:
        """Makes a multiply-add of floats, rounded once."""
        return Operand(Call("fma", tuple(map(_node, args)), "float"))


def _node(x: Operand | float) -> Node:
    return x.node if isinstance(x, Operand) else Const(x, "float")
