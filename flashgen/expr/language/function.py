"""The row of a function of the language: a cell for everything that anybody asks about it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, Protocol

from flashgen.expr.language.bound import Bound, Interval
from flashgen.expr.language.instructions import Instructions
from flashgen.expr.language.nodes import Type

Takes = Literal["floats", "numbers", "integers", "conditions", "choice"]
# By what the sign of a result is known: the signs of all arguments, of some, of a sum's, of the first; or always, or never.
Sign = Literal["always", "every", "some", "sum", "first", "never"]


class Machine(Protocol):
    """The functions that a kernel offers, of operands that add, subtract, multiply, divide and negate: itself, and instructions by name."""

    def itself(self, *args: Any) -> Any:
        """Makes the operation itself, as the kernel's text names it."""

    def library(self, name: str, *args: Any) -> Any:
        """Makes a call of a function of CUDA's library."""

    def instruction(self, name: str, *args: Any) -> Any:
        """Makes an instruction of the device vocabulary."""

    def fma(self, *args: Any) -> Any:
        """Makes a multiply-add, rounded once."""


Maker = Callable[..., Any]  # of a function's instructions, from a Machine and the operands
Off = Callable[[float], float]  # an error of tanh, for arguments up to a size


def plain(machine: Machine, *args: Any) -> Any:
    """Makes a function as its cell `cuda` names it."""
    return machine.itself(*args)


@dataclass(frozen=True)
class Short:
    """One instruction in place of some, as tanh.approx: what makes it, and how far it is off where tanh is off by so much."""

    make: Maker
    error: Callable[[Off, Bound], float]


@dataclass(frozen=True, kw_only=True)
class Function:
    """A function or an operator. Cells are plain functions of whatever somebody asks about: numbers, arrays, bounds, operands."""

    name: str
    parameters: tuple[str, ...]
    takes: Takes
    gives: Type | Literal["same"]  # "same": the type of its last argument
    python: Callable[..., Any]  # of Python's numbers, to fold constants; ArithmeticError or ValueError where it has no value
    numpy: Callable[..., Any]
    definition: Callable[..., Any]  # for the reference, of float64 and int64: shares nothing with kernels
    cuda: Mapping[str, str]  # by the type of its last argument: an operator, or a function of CUDA or templates/device
    decided: str  # the operation in its place where something is decided by the result: rounded to the nearest, and never fused
    library: Maker  # in terms of CUDA's functions of float32
    fast: Maker  # in terms of the special function unit
    short: tuple[Short, ...]  # as one instruction, if there is one
    derivative: tuple[str, ...]  # by each parameter that is a float, in the language; at kinks as flashgen.expr.meaning.gradient says
    interval: Callable[..., Interval]  # of Bounds
    error: Callable[..., float]  # of Bounds: what the errors of arguments make of the result's
    terms: Callable[..., Any]  # of the value and of Terms: the magnitudes that the value is a sum of
    sign: tuple[Sign, Sign]  # by what it is positive, by what it is at least 0
    cost: Instructions  # of floats, in terms of CUDA's functions
    decides: bool = False  # whether the floats that it is of decide something
    approximate: bool = False  # whether no two machines give the same

    def __post_init__(self) -> None:
        if empty := [cell.name for cell in fields(self) if getattr(self, cell.name) in (None, "")]:
            raise ValueError(f"the function {self.name!r} has no {', '.join(empty)}")


@dataclass(frozen=True)
class Defined:
    """A function of floats that is an expression of others."""

    name: str
    parameters: tuple[str, ...]
    text: str
