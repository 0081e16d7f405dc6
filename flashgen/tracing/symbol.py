"""Symbols, which a traced function computes with: each operation on one is a piece of an expression's syntax tree."""

import ast
import linecache
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

from flashgen.errors import Position, SpecError, did_you_mean
from flashgen.tracing.names import COMPARING, FUNCTIONS, KEYWORDS, METHODS, UFUNCS, Tree

_traced: list[set[int]] = []  # ids of the code of functions that are being traced, innermost last


class Symbol:
    """A value of the language: `tree` is its expression."""

    __array_priority__ = 1000  # NumPy leaves operators to it
    tree: ast.expr

    def __init__(self, tree: ast.expr, wide: bool = False):
        """`wide`: a number of int64, of which integers and floats are made before something is computed."""
        self.tree, self.wide = tree, wide
        vars(tree).setdefault("origin", _here())

    def __repr__(self) -> str:
        return ast.unparse(self.tree)

    def __bool__(self) -> bool:
        hint = "write & | ~ for `and` `or` `not`, where(condition, a, b) for `if`, minimum and maximum of NumPy for `min` and `max`"
        raise fault("the value is known in the kernel alone", hint)

    def __hash__(self) -> int:
        raise fault("the value is known in the kernel alone, and here Python wants a key", "an array with an index looks up")

    def __index__(self) -> int:
        raise fault("the value is known in the kernel alone, and here Python wants a number", "a bound of a loop is a number")

    def __int__(self) -> int:
        hint = "an index is an integer, an integer becomes a float where it meets one; the integer of a float is x.astype(int)"
        raise fault("the value is known in the kernel alone, and here Python wants a number", hint)

    __float__ = __int__
    __iter__ = __len__ = __index__

    def __abs__(self) -> "Symbol":
        return call(METHODS["abs"], (self,))

    def __floor__(self) -> "Symbol":
        return call(METHODS["int"], (call(FUNCTIONS["floor"], (self,)),))

    def __ceil__(self) -> "Symbol":
        return call(METHODS["int"], (call(FUNCTIONS["ceil"], (self,)),))

    def __trunc__(self) -> "Symbol":
        return call(METHODS["int"], (self,))

    def __round__(self) -> "Symbol":
        return call(METHODS["int"], (call(FUNCTIONS["round"], (self,)),))

    def __rshift__(self, bits: Any) -> "Symbol":
        return call(FUNCTIONS["floor_divide"], (self, 1 << _shift(bits)))

    def __lshift__(self, bits: Any) -> "Symbol":
        return call(FUNCTIONS["mul"], (self, 1 << _shift(bits)))

    def __xor__(self, other: Any) -> "Symbol":
        return call(FUNCTIONS["logical_xor"], (self, other))

    __rxor__ = __xor__

    def __getitem__(self, index: Any) -> "Symbol":
        raise fault(f"{self!r} is a number: it cannot be indexed")

    @property
    def device(self) -> "Symbol":
        """Itself, for `to`: a traced value lies where the kernel runs."""
        return self

    dtype = device  # numbers become floats where they meet one

    def to(self, kind: Any) -> "Symbol":
        """Itself, whatever the device, and of the dtype of another traced value; else a float or an integer."""
        if isinstance(kind, Symbol | str) or type(kind).__name__ == "device":
            return self
        name = getattr(kind, "__name__", str(kind)).rpartition(".")[2]
        if name.startswith(("float", "bfloat", "double", "half")):
            return call(METHODS["float"], (self,))
        if not name.startswith(("int", "long")):
            raise fault(f"a traced value is not cast to {kind} by to()", "write .float() or .int()")
        return call(METHODS["int"], (self,))

    type = astype = to

    def new_ones(self, shape: Any, dtype: Any = None) -> "Symbol":
        """1, or True of a boolean dtype."""
        return self._filled(1, shape, dtype)

    def new_zeros(self, shape: Any, dtype: Any = None) -> "Symbol":
        """0, or False of a boolean dtype."""
        return self._filled(0, shape, dtype)

    def _filled(self, value: int, shape: Any, dtype: Any) -> "Symbol":
        if tuple(shape):
            raise fault(f"a traced value is one number, and {list(shape)} is the shape of an array")
        return Symbol(ast.Constant(bool(value) if "bool" in str(dtype) else value))

    def __getattr__(self, name: str) -> Any:
        if name not in METHODS:
            raise AttributeError(name) if name.startswith("__") else fault(f"a traced value has no .{name}", did_you_mean(name, METHODS))
        return lambda *args, **options: called(name, METHODS, (self, *args), options)

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **options: Any) -> "Symbol":
        if method != "__call__" or options:
            raise fault(f"numpy.{ufunc.__name__}.{method} takes arrays, and a traced value is one number")
        return called(ufunc.__name__, UFUNCS, args)

    def __array_function__(self, function: Any, _types: Any, args: Any, options: Any) -> "Symbol":
        return called(function.__name__, FUNCTIONS, args, options)

    @classmethod
    def __torch_function__(cls, function: Any, _types: Any, args: Any = (), options: Any = None) -> "Symbol":
        if function.__name__ == "__getitem__":
            raise fault("an array that the function makes is indexed", "make it before, so that the function reads it by a name")
        return called(function.__name__, FUNCTIONS, args, options)


class Array(Symbol):
    """A tensor of the language, which is indexed with a value an axis."""

    rank: int

    def __init__(self, name: str, rank: int, wide: bool = False):
        """`wide`: its elements are numbers of int64."""
        super().__init__(ast.Name(name), wide)
        self.rank = rank

    def __getitem__(self, index: Any) -> Symbol:
        indices = index if isinstance(index, tuple) else (index,)
        if len(indices) == self.rank:
            trees = [operand(one) for one in indices]
            return Symbol(ast.Subscript(self.tree, trees[0] if self.rank == 1 else ast.Tuple(trees)), self.wide)
        if len(indices) < self.rank:
            return Part(self, indices)
        raise fault(f"{self!r} takes {self.rank} indices, got {len(indices)}")

    def __len__(self) -> int:
        raise fault(f"the length of {self!r} belongs to a call", "write the number, or an index that is clamped to the axis")


class Part(Symbol):
    """A tensor with the first of its indices, as in bias[b][h]."""

    def __init__(self, array: Array, indices: tuple[Any, ...]):
        super().__init__(array.tree)
        self.array, self.indices = array, indices

    def __getitem__(self, index: Any) -> Symbol:
        return self.array[(*self.indices, *(index if isinstance(index, tuple) else (index,)))]


def symbol(text: str) -> Symbol:
    """The symbol of an expression, for functions that are traced."""
    return Symbol(ast.parse(text, mode="eval").body)


def call(function: Tree, args: Iterable[Any], options: Mapping[str, Any] | None = None) -> Symbol:
    """The symbol that a function of trees makes of values. `options`: those that have names; False and None, as of inplace, say nothing."""
    trees, named = [operand(x) for x in args], dict[str, Any]()
    for name, x in (options or {}).items():
        if x is not None and x is not False:
            named[KEYWORDS.get(name, name)] = x if isinstance(x, str) else operand(x)
    try:
        return Symbol(function(*trees, **named))
    except TypeError:
        raise fault(f"{', '.join(map(repr, (*map(ast.unparse, trees), *named)))}: these arguments are not what it takes") from None


def called(name: str, table: Mapping[str, Tree], args: Iterable[Any], options: Mapping[str, Any] | None = None) -> Symbol:
    """The symbol that a function of NumPy, PyTorch or JAX makes of values."""
    if name not in table:
        raise fault(f"no expression has {name}", did_you_mean(name, sorted(table)))
    if name in COMPARING and not options:  # of numbers as they are
        return Symbol(table[name](*map(tree, args)))
    return call(table[name], args, options)


def operand(value: Any) -> ast.expr:
    """The syntax tree of a value of which something is computed: of a number of int64, the integer."""
    found = tree(value)
    return ast.Call(ast.Name("int"), [found], []) if isinstance(value, Symbol) and value.wide else found


def _shift(bits: Any) -> int:
    """A number of bits. Raises SpecError for what the kernel alone knows."""
    if not isinstance(bits, int):
        raise fault("bits are shifted by a whole number of the text", "write // and * of a power of 2")
    return bits


def tree(value: Any) -> ast.expr:
    """The syntax tree of a value. Raises SpecError for what no expression holds."""
    if isinstance(value, Array | Part):
        raise fault(f"{value!r} is a tensor: give it an index for each axis")
    if isinstance(value, Symbol):
        return value.tree
    number = value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value
    if isinstance(number, bool):
        return ast.Constant(number)
    if isinstance(number, int | float):
        return ast.Constant(number) if number >= 0 else ast.UnaryOp(ast.USub(), ast.Constant(-number))
    raise fault(f"a {type(value).__name__} is no value of an expression", "expressions are of numbers, indices and tensors' elements")


def fault(message: str, hint: str = "") -> SpecError:
    """The refusal of what a traced function does, at its line."""
    here = _here()
    return SpecError(message, position(*here) if here else None, hint)


Origin = tuple[CodeType, int, int]  # the code of a traced function, the instruction that it is at, and its line


def _here() -> Origin | None:
    """The place of the traced function that is at work."""
    frame: FrameType | None = sys._getframe(1) if _traced else None
    while frame and id(frame.f_code) not in _traced[-1]:
        frame = frame.f_back
    return (frame.f_code, frame.f_lasti, frame.f_lineno) if frame else None


def position(code: CodeType, instruction: int, number: int) -> Position:
    """The position in its file."""
    line, _, column, _ = list(code.co_positions())[instruction // 2]
    line = line or number
    text = linecache.getline(code.co_filename, line).rstrip("\n")
    return Position(code.co_filename, line, (column or 0) + 1, text)


@contextmanager
def tracing(codes: set[int]) -> Iterator[None]:
    """Tells faults at the lines of these functions."""
    _traced.append(codes)
    try:
        yield
    finally:
        _traced.pop()


def _operator(op: type[ast.operator], swapped: bool) -> Any:
    def method(self: Symbol, other: Any) -> Symbol:
        a, b = operand(self), operand(other)
        return Symbol(ast.BinOp(b, op(), a) if swapped else ast.BinOp(a, op(), b))

    return method


def _comparison(op: type[ast.cmpop]) -> Any:
    return lambda self, other: Symbol(ast.Compare(tree(self), [op()], [tree(other)]))


def _sign(op: type[ast.unaryop]) -> Any:
    return lambda self: Symbol(ast.UnaryOp(op(), operand(self)))


def _missing(name: str) -> Any:
    def method(*_: Any) -> Any:
        raise fault(f"no expression has Python's {name}")

    return method


OPERATORS: dict[str, type[ast.operator]] = {"add": ast.Add, "sub": ast.Sub, "mul": ast.Mult, "truediv": ast.Div, "floordiv": ast.FloorDiv}
OPERATORS |= {"mod": ast.Mod, "pow": ast.Pow, "and": ast.BitAnd, "or": ast.BitOr}
COMPARISONS: dict[str, type[ast.cmpop]] = {"lt": ast.Lt, "le": ast.LtE, "gt": ast.Gt, "ge": ast.GtE, "eq": ast.Eq, "ne": ast.NotEq}
SIGNS: dict[str, type[ast.unaryop]] = {"neg": ast.USub, "pos": ast.UAdd, "invert": ast.Invert}

for _name, _op in OPERATORS.items():
    setattr(Symbol, f"__{_name}__", _operator(_op, swapped=False))
    setattr(Symbol, f"__r{_name}__", _operator(_op, swapped=True))
for _name, _compare in COMPARISONS.items():
    setattr(Symbol, f"__{_name}__", _comparison(_compare))
for _name, _prefix in SIGNS.items():
    setattr(Symbol, f"__{_name}__", _sign(_prefix))
for _name in ("matmul", "rmatmul", "divmod", "rdivmod", "rlshift", "rrshift"):
    setattr(Symbol, f"__{_name}__", _missing(_name))
