"""Finds what a function reads besides its arguments, and puts symbols in its place."""

import ast
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

from flashgen.errors import SpecError
from flashgen.spec.words import free_name, value_name_fault
from flashgen.tracing import modules
from flashgen.tracing.symbol import Array, Symbol


@dataclass
class Captured:
    """The values that traced functions read besides their arguments: numbers and arrays, by the name that the expression gives them."""

    words: frozenset[str]  # which no captured value may be called by
    values: dict[str, Any] = field(default_factory=dict)
    codes: set[int] = field(default_factory=set)  # ids: code that a compiler made may have no hash
    made: dict[tuple[str, int], tuple[Any, Any]] = field(default_factory=dict)  # an object, which keeps its id, and what stands for it

    def stand_in(self, name: str, value: Any) -> Any:
        """The stand-in for a captured value: a symbol for a number or an array, a traced form of a function, else the value itself."""
        key = _key(name, value)
        if key not in self.made:
            self.made[key] = value, self._stand_in(name, value)
        return self.made[key][1]

    def _stand_in(self, name: str, value: Any) -> Any:
        if modules.of_jax(value):
            return modules.stand_in(value)
        if isinstance(value, FunctionType | MethodType | functools.partial):
            return self.rebuilt(value)
        if isinstance(value, Symbol):
            return value
        if isinstance(value, tuple) and all(isinstance(one, FunctionType) for one in value):  # as of masks that are combined
            return tuple(self.rebuilt(one) for one in value)
        shape = getattr(value, "shape", None) if hasattr(value, "dtype") else None
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (number or isinstance(shape, tuple)):
            return value
        own = self.named(name, value)
        return Array(own, len(shape), str(value.dtype).endswith("int64")) if shape else Symbol(ast.Name(own))

    def named(self, name: str, value: Any) -> str:
        """The name of a value in the expression, as near as can be to what the function calls it."""
        own = free_name(name, self._fault)
        while self._fault(own):
            own += "x"
        self.values[own] = value
        return own

    def _fault(self, name: str) -> str:
        return "is taken" if name in self.words or name in self.values else value_name_fault(name)

    def rebuilt(self, function: Any) -> Callable[..., Any]:
        """The function with stand-ins for what it captures; of a method, an object that is called or a partial, that of the function
        inside."""
        if isinstance(function, functools.partial):
            names = inspect.signature(function.func).parameters
            args = [self.stand_in(name, x) for name, x in zip(names, function.args, strict=False)]
            return functools.partial(self.rebuilt(function.func), *args, **{k: self.stand_in(k, x) for k, x in function.keywords.items()})
        if isinstance(function, MethodType):
            return MethodType(self.rebuilt(function.__func__), _Self(function.__self__, self))
        if isinstance(function, FunctionType):
            return self._of(function)
        of_kind = _of_kind(type(function))
        if not isinstance(of_kind, FunctionType):
            raise SpecError(f"a {type(function).__name__} cannot be traced", hint="expected a Python function")
        return self.rebuilt(MethodType(of_kind, function))

    def _default(self, name: str, value: Any) -> Any:
        """The default of an argument: a stand-in for an array or a function; numbers stay, as Python may count by them."""
        number = isinstance(value, int | float) or getattr(value, "shape", None) == ()
        return value if number else self.stand_in(name, value)

    def _of(self, function: FunctionType) -> Callable[..., Any]:
        made = FunctionType(function.__code__, dict(function.__globals__), function.__name__, function.__defaults__, function.__closure__)
        self.made[_key("", function)] = function, made  # before what it captures, which may be itself
        self.codes |= set(map(id, _codes(function.__code__)))
        last, own = function.__code__.co_argcount, _globals(function)
        names = function.__code__.co_varnames[last - len(function.__defaults__ or ()) : last]
        defaults = tuple(self._default(name, x) for name, x in zip(names, function.__defaults__ or (), strict=True))
        by_name = {name: self._default(name, x) for name, x in (function.__kwdefaults__ or {}).items()}
        made.__defaults__, made.__kwdefaults__ = defaults, by_name
        made.__globals__.update({name: self.stand_in(name, value) for name, value in own.items()})
        if function.__closure__:
            cells = zip(function.__code__.co_freevars, function.__closure__, strict=True)
            closure = tuple(CellType(self.stand_in(name, cell.cell_contents)) for name, cell in cells)
            made = FunctionType(made.__code__, made.__globals__, made.__name__, defaults, closure)
            made.__kwdefaults__ = by_name
            self.made[_key("", function)] = function, made
        return made


def _of_kind(kind: type[Any]) -> Any:
    """The function that objects of a kind run where they are called; of modules of PyTorch `forward`, around which they run hooks."""
    of_torch = any(base.__module__ == "torch.nn.modules.module" for base in kind.__mro__)
    return getattr(kind, "forward" if of_torch else "__call__")


def _key(name: str, value: Any) -> tuple[str, int]:
    """Equal small numbers are one object, whatever they are called."""
    return (name if isinstance(value, int | float) else "", id(value))


class _Self:
    """An object whose attributes are stood in for, as a traced method reads them."""

    def __init__(self, whole: Any, captured: Captured):
        self._whole, self._captured = whole, captured

    def __getattr__(self, name: str) -> Any:
        return self._captured.stand_in(name, getattr(self._whole, name))


def _codes(code: CodeType) -> list[CodeType]:
    return [code, *(c for const in code.co_consts if isinstance(const, CodeType) for c in _codes(const))]


def _globals(function: FunctionType) -> Mapping[str, Any]:
    """The globals that a function names, of those that are numbers, arrays, or functions of the module that it is from."""
    named = {name for code in _codes(function.__code__) for name in code.co_names}
    found = {name: x for name, x in function.__globals__.items() if name in named}
    return {name: x for name, x in found.items() if not isinstance(x, FunctionType) or x.__module__ == function.__module__}
