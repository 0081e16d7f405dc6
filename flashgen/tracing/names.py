"""The functions of NumPy and PyTorch that the language has: by their name there, the expression of the arguments' trees."""

import ast
from collections.abc import Callable

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


def _clip(x: ast.expr, low: ast.expr, high: ast.expr) -> ast.expr:
    return _call("min", _call("max", x, low), high)


def _as_float(x: ast.expr, *_: ast.expr) -> ast.expr:
    return ast.BinOp(ast.Constant(1.0), ast.Mult(), x)


def _differ(a: ast.expr, b: ast.expr) -> ast.expr:
    """True where exactly one of two conditions is."""
    return ast.BinOp(
        ast.BinOp(a, ast.BitAnd(), ast.UnaryOp(ast.Invert(), b)), ast.BitOr(), ast.BinOp(ast.UnaryOp(ast.Invert(), a), ast.BitAnd(), b)
    )


_OF_ONE: dict[str, Tree] = {
    **{name: _named(name, 1) for name in ("exp", "exp2", "log", "tanh", "sqrt", "sin", "cos", "floor", "erf", "sigmoid", "softplus")},
    **dict.fromkeys(("abs", "absolute", "fabs"), _named("abs", 1)),
    **dict.fromkeys(("round", "rint", "around"), _named("round", 1)),
    **dict.fromkeys(("trunc", "fix"), _named("int", 1)),
    "silu": _named("silu", 1),
    "gelu": _named("gelu", 1),
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
    **dict.fromkeys(("div", "divide", "true_divide"), _binary(ast.Div)),
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
FUNCTIONS: dict[str, Tree] = {**UFUNCS, "where": _named("where", 3), "clamp": _clip, "to": lambda x, _device: x}  # a constant to a symbol's
METHODS: dict[str, Tree] = {
    **FUNCTIONS,
    **dict.fromkeys(("float", "double", "half", "bfloat16"), _as_float),
    **dict.fromkeys(("int", "long"), _named("int", 1)),
}
