"""Nodes as sympy expressions, and those as NumPy functions."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import sympy
from sympy.printing.numpy import NumPyPrinter

from flashgen.expr.nodes import Call, Const, Load, Name, Node

_READ = sympy.Function("read")


def to_sympy(node: Node) -> Any:
    """The node as sympy has it, unevaluated: s - s is not 0 where s is infinite.

    >>> to_sympy(Call("*", (Name("s", "float"), Const(0.5, "float")), "float"))
    s*0.5

    Names and tensors are symbols of their names.
    """
    match node:
        case Const(value, "bool"):
            return sympy.true if value else sympy.false
        case Const(value, "int"):
            return sympy.Integer(value)
        case Const(value):
            return sympy.Float(value, 17)
        case Name(name):
            return sympy.Symbol(name)
        case Load(tensor, indices, type):
            value = _READ(sympy.Symbol(tensor), *map(to_sympy, indices))
            return sympy.Ne(value, 0, evaluate=False) if type == "bool" else value
        case Call("float", (x,)):
            return to_sympy(x)
        case Call("where", (c, a, b), "bool"):
            c, a, b = map(to_sympy, (c, a, b))
            return sympy.Or(sympy.And(c, a, evaluate=False), sympy.And(sympy.Not(c, evaluate=False), b, evaluate=False), evaluate=False)
        case Call("where", (c, a, b)):
            c, a, b = map(to_sympy, (c, a, b))
            return sympy.Piecewise((a, c), (b, True), evaluate=False)
        case Call(op, args):
            return _OPERATIONS[op](*map(to_sympy, args))
    raise AssertionError(node)


def to_numpy(node: Node, names: Sequence[str]) -> Callable[..., Any]:
    """The node as a function of arrays, one for each of `names`, that broadcast. An index outside a tensor is clamped to it."""
    symbols = [sympy.Symbol(name) for name in names]
    arguments = [sympy.Dummy(name) for name in names]  # a param may be called as a function of NumPy
    expression = to_sympy(node).xreplace(dict(zip(symbols, arguments, strict=True)))
    found: Callable[..., Any] = sympy.lambdify(arguments, expression, modules=[{"read": _read}, "numpy"], printer=_Printer(_SETTINGS))
    return found


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
    "//": lambda a, b: sympy.floor(_quotient(a, b), evaluate=False),
    "%": _unevaluated(sympy.Mod),
    "neg": _minus,
    "abs": _unevaluated(sympy.Abs),
    "min": _unevaluated(sympy.Min),
    "max": _unevaluated(sympy.Max),
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
    "&": _unevaluated(sympy.And),
    "|": _unevaluated(sympy.Or),
    "~": _unevaluated(sympy.Not),
}
_SETTINGS = {"fully_qualified_modules": False, "inline": True, "allow_unknown_functions": True, "user_functions": {"read": "read"}}


class _Printer(NumPyPrinter):  # type: ignore[misc]
    """sympy's stacks the arguments of these, which must then have one shape; here they broadcast."""

    def _nested(self, function: str, args: Sequence[Any]) -> str:
        first, *rest = map(self._print, args)
        for other in rest:
            first = f"{self._module_format('numpy.' + function)}({first}, {other})"
        return str(first)

    def _print_And(self, e: Any) -> str:  # noqa: N802
        return self._nested("logical_and", e.args)

    def _print_Or(self, e: Any) -> str:  # noqa: N802
        return self._nested("logical_or", e.args)

    def _print_Min(self, e: Any) -> str:  # noqa: N802
        return self._nested("minimum", e.args)

    def _print_Max(self, e: Any) -> str:  # noqa: N802
        return self._nested("maximum", e.args)

    def _print_Piecewise(self, e: Any) -> str:  # noqa: N802
        (then, condition), (other, _) = e.args
        return f"{self._module_format('numpy.where')}({self._print(condition)}, {self._print(then)}, {self._print(other)})"


def _read(tensor: Any, *indices: Any) -> Any:
    clamped = (np.clip(np.asarray(i, np.int64), 0, size - 1) for i, size in zip(indices, tensor.shape, strict=True))
    return tensor[tuple(clamped)]
