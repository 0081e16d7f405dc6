"""Nodes as sympy expressions, and those as NumPy functions."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import sympy

from flashgen.expr.nodes import Call, Const, Load, Name, Node


def to_sympy(node: Node, symbols: Mapping[str, Any] | None = None) -> Any:
    """The node as sympy has it, unevaluated: s - s is not 0 where s is infinite.

    >>> to_sympy(Call("*", (Name("s", "float"), Const(0.5, "float")), "float"))
    s*0.5

    Names and tensors are symbols of their names, or those given. Reads, choices and logic are functions called as in NumPy: sympy's
    own simplify whatever they are told.
    """
    match node:
        case Const(value, "bool"):
            return sympy.true if value else sympy.false
        case Const(value, "int"):
            return sympy.Integer(value)
        case Const(value):
            return sympy.Float(value, 17)
        case Name(name):
            return symbols[name] if symbols else sympy.Symbol(name)
        case Load(tensor, indices, type):
            array = symbols[tensor] if symbols else sympy.Symbol(tensor)
            value = sympy.Function("read")(array, *(to_sympy(i, symbols) for i in indices))
            return sympy.Ne(value, 0, evaluate=False) if type == "bool" else value
        case Call("float", (x,)):
            return to_sympy(x, symbols)
        case Call(op, args):
            return _OPERATIONS[op](*(to_sympy(x, symbols) for x in args))
    raise AssertionError(node)


def to_numpy(node: Node, names: Sequence[str]) -> Callable[..., Any]:
    """The node as a function of arrays, one for each of `names`, that broadcast. An index outside a tensor is clamped to it."""
    # Symbols of our own: a param may be called as a function of NumPy is, and lambdify evaluates anew what it renames.
    symbols = {name: sympy.Symbol(f"value_{i}") for i, name in enumerate(names)}
    expression = to_sympy(node, symbols)
    function: Callable[..., Any] = sympy.lambdify(list(symbols.values()), expression, modules=[{"read": _read, "bit": _bit}, "numpy"])
    return function


def _read(tensor: Any, *indices: Any) -> Any:
    clamped = (np.clip(np.asarray(i, np.int64), 0, size - 1) for i, size in zip(indices, tensor.shape, strict=True))
    return tensor[tuple(clamped)]


def _bit(x: Any, i: Any) -> Any:
    place = np.asarray(i, np.int64)
    return np.where((place >= 0) & (place < 32), np.asarray(x, np.int64) // 2 ** np.clip(place, 0, 31) % 2, 0) == 1


def _unevaluated(function: Any) -> Callable[..., Any]:
    return lambda *args: function(*args, evaluate=False)


def _quotient(a: Any, b: Any) -> Any:
    return sympy.Mul(a, sympy.Pow(b, -1, evaluate=False), evaluate=False)


def _minus(a: Any) -> Any:
    return sympy.Mul(-1, a, evaluate=False)


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "+": _unevaluated(sympy.Add),
    "-": lambda a, b: sympy.Add(a, _minus(b), evaluate=False),
    "*": _unevaluated(sympy.Mul),
    "/": _quotient,
    "//": sympy.Function("floor_divide"),  # of integers: a quotient of floats would round
    "%": sympy.Function("remainder"),
    "neg": _minus,
    "abs": _unevaluated(sympy.Abs),
    "min": sympy.Function("minimum"),
    "max": sympy.Function("maximum"),
    "where": sympy.Function("where"),
    "bit": sympy.Function("bit"),
    "exp": _unevaluated(sympy.exp),
    "exp2": lambda a: sympy.Pow(2.0, a, evaluate=False),
    "log": _unevaluated(sympy.log),
    "tanh": _unevaluated(sympy.tanh),
    "sigmoid": lambda a: _quotient(1, sympy.Add(1, sympy.exp(_minus(a), evaluate=False), evaluate=False)),
    "sqrt": lambda a: sympy.Pow(a, sympy.Rational(1, 2), evaluate=False),
    "floor": _unevaluated(sympy.floor),
    "<": _unevaluated(sympy.Lt),
    "<=": _unevaluated(sympy.Le),
    ">": _unevaluated(sympy.Gt),
    ">=": _unevaluated(sympy.Ge),
    "==": _unevaluated(sympy.Eq),
    "!=": _unevaluated(sympy.Ne),
    "&": sympy.Function("logical_and"),
    "|": sympy.Function("logical_or"),
    "~": sympy.Function("logical_not"),
}
