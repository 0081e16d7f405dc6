"""The functions of NumPy and PyTorch that the language has: by their name there, the expression of the arguments' trees.

A function of one argument is there by its row of the language, under its own name and that of its NumPy cell; others have other names.
"""

import ast
from collections.abc import Callable, Iterator

import numpy as np

from flashgen.expr.language.functions import FUNCTIONS as LANGUAGE

Tree = Callable[..., ast.expr]


def _named(name: str, arity: int) -> Tree:
    def tree(*args: ast.expr) -> ast.expr:
        if len(args) != arity:
            raise TypeError(name)
        return ast.Call(ast.Name(name), list(args), [])

    return tree


def _binary(op: type[ast.operator]) -> Tree:
    return lambda a, b: ast.BinOp(a, op(), b)


def _compare(op: type[ast.cmpop]) -> Tree:
    return lambda a, b: ast.Compare(a, [op()], [b])


def _call(name: str, *args: ast.expr) -> ast.expr:
    return ast.Call(ast.Name(name), list(args), [])


def _clip(x: ast.expr, low: ast.expr | None = None, high: ast.expr | None = None) -> ast.expr:
    raised = x if low is None else _call("max", x, low)
    return raised if high is None else _call("min", raised, high)


def _times(x: ast.expr, y: ast.expr) -> ast.expr:
    return ast.BinOp(x, ast.Mult(), y)


def _plus(x: ast.expr, y: ast.expr) -> ast.expr:
    return ast.BinOp(x, ast.Add(), y)


def _positive(x: ast.expr) -> ast.expr:
    return ast.Compare(x, [ast.Gt()], [ast.Constant(0.0)])


def _gelu(x: ast.expr, approximate: str = "none") -> ast.expr:
    if approximate != "tanh":
        return _call("gelu", x)
    cube = _times(ast.Constant(0.044715), ast.BinOp(x, ast.Pow(), ast.Constant(3)))
    inner = _call("tanh", _times(ast.Constant(0.7978845608028654), _plus(x, cube)))
    return _times(_times(ast.Constant(0.5), x), _plus(ast.Constant(1.0), inner))


def _leaky_relu(x: ast.expr, negative_slope: ast.expr = ast.Constant(0.01)) -> ast.expr:  # noqa: B008, nothing changes it
    return _call("where", _positive(x), x, _times(negative_slope, x))


def _elu(x: ast.expr, alpha: ast.expr = ast.Constant(1.0)) -> ast.expr:  # noqa: B008
    less_one = ast.BinOp(_call("exp", _call("min", x, ast.Constant(0.0))), ast.Sub(), ast.Constant(1.0))
    return _call("where", _positive(x), x, _times(alpha, less_one))


def _divide(x: ast.expr, y: ast.expr, rounding_mode: str | None = None) -> ast.expr:
    if rounding_mode not in (None, "floor"):
        raise TypeError(rounding_mode)
    return ast.BinOp(x, ast.FloorDiv() if rounding_mode else ast.Div(), y)


def _as_float(x: ast.expr, *_: ast.expr) -> ast.expr:
    return ast.BinOp(ast.Constant(1.0), ast.Mult(), x)


def _differ(a: ast.expr, b: ast.expr) -> ast.expr:
    """True where exactly one of two conditions is."""
    return ast.BinOp(
        ast.BinOp(a, ast.BitAnd(), ast.UnaryOp(ast.Invert(), b)), ast.BitOr(), ast.BinOp(ast.UnaryOp(ast.Invert(), a), ast.BitAnd(), b)
    )


def _of_language() -> Iterator[tuple[str, Tree]]:
    """The functions of one argument, by the names that libraries have for them."""
    for name, row in LANGUAGE.items():
        if len(row.parameters) == 1:
            own = getattr(row, "numpy", None)
            yield from dict.fromkeys((name, own.__name__ if isinstance(own, np.ufunc) else name), _named(name, 1)).items()


_OF_ONE: dict[str, Tree] = {
    **dict(_of_language()),
    "fabs": _named("abs", 1),
    "around": _named("round", 1),
    **dict.fromkeys(("trunc", "fix"), _named("int", 1)),
    "gelu": _gelu,
    "leaky_relu": _leaky_relu,
    "elu": _elu,
    **dict.fromkeys(("logsigmoid", "log_sigmoid"), lambda x: ast.UnaryOp(ast.USub(), _call("softplus", ast.UnaryOp(ast.USub(), x)))),
    "log2": lambda x: _times(ast.Constant(1.4426950408889634), _call("log", x)),
    "ceil": lambda x: ast.UnaryOp(ast.USub(), _call("floor", ast.UnaryOp(ast.USub(), x))),
    "square": lambda x: ast.BinOp(x, ast.Pow(), ast.Constant(2)),
    "relu": lambda x: _call("max", x, ast.Constant(0)),
    "reciprocal": lambda x: ast.BinOp(ast.Constant(1.0), ast.Div(), x),
    "rsqrt": lambda x: ast.BinOp(ast.Constant(1.0), ast.Div(), _call("sqrt", x)),
    "log1p": lambda x: _call("log", ast.BinOp(ast.Constant(1.0), ast.Add(), x)),
    **dict.fromkeys(("neg", "negative"), lambda x: ast.UnaryOp(ast.USub(), x)),
    **dict.fromkeys(("logical_not", "bitwise_not", "invert"), lambda x: ast.UnaryOp(ast.Invert(), x)),
}
_OF_TWO: dict[str, Tree] = {
    **dict.fromkeys(("add",), _binary(ast.Add)),
    **dict.fromkeys(("sub", "subtract"), _binary(ast.Sub)),
    **dict.fromkeys(("mul", "multiply"), _binary(ast.Mult)),
    **dict.fromkeys(("div", "divide", "true_divide"), _divide),
    **dict.fromkeys(("floor_divide",), _binary(ast.FloorDiv)),
    **dict.fromkeys(("remainder", "mod"), _binary(ast.Mod)),
    **dict.fromkeys(("pow", "power", "float_power"), _binary(ast.Pow)),
    **dict.fromkeys(("logical_and", "bitwise_and"), _binary(ast.BitAnd)),
    **dict.fromkeys(("logical_or", "bitwise_or"), _binary(ast.BitOr)),
    **dict.fromkeys(("logical_xor", "bitwise_xor"), _differ),
    **dict.fromkeys(("minimum", "fmin", "min"), _named("min", 2)),
    **dict.fromkeys(("maximum", "fmax", "max"), _named("max", 2)),
    **dict.fromkeys(("lt", "less"), _compare(ast.Lt)),
    **dict.fromkeys(("le", "less_equal"), _compare(ast.LtE)),
    **dict.fromkeys(("gt", "greater"), _compare(ast.Gt)),
    **dict.fromkeys(("ge", "greater_equal"), _compare(ast.GtE)),
    **dict.fromkeys(("eq", "equal"), _compare(ast.Eq)),
    **dict.fromkeys(("ne", "not_equal"), _compare(ast.NotEq)),
}
UFUNCS: dict[str, Tree] = {**_OF_ONE, **_OF_TWO, "clip": _clip}
FUNCTIONS: dict[str, Tree] = {
    **UFUNCS,
    "where": _named("where", 3),
    **dict.fromkeys(("clamp", "hardtanh"), _clip),
    "to": lambda x, _device: x,  # a constant to a symbol's
}
COMPARING = frozenset(("lt", "less", "le", "less_equal", "gt", "greater", "ge", "greater_equal", "eq", "equal", "ne", "not_equal"))
KEYWORDS = {"min": "low", "max": "high", "a_min": "low", "a_max": "high", "min_val": "low", "max_val": "high"}  # of the table's functions
METHODS: dict[str, Tree] = {
    **FUNCTIONS,
    **dict.fromkeys(("float", "double", "half", "bfloat16"), _as_float),
    **dict.fromkeys(("int", "long"), _named("int", 1)),
}
