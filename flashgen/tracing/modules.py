"""Modules of JAX as traced functions read them: functions of theirs make symbols of symbols, of which JAX itself would want shapes."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from flashgen.tracing.names import FUNCTIONS
from flashgen.tracing.symbol import Symbol, called


def of_jax(value: Any) -> bool:
    """True for a module of JAX, and for a function of one."""
    home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    known = isinstance(value, ModuleType) or (callable(value) and not isinstance(value, type) and hasattr(value, "__name__"))
    return known and str(home).partition(".")[0] in ("jax", "jaxlib")


def stand_in(value: Any) -> Any:
    """The stand-in for a module of JAX, or for a function of one."""
    return _Module(value) if isinstance(value, ModuleType) else _function(value)


class _Module:
    def __init__(self, whole: ModuleType):
        self._whole = whole

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._whole, name)
        return stand_in(found) if of_jax(found) else found


def _function(whole: Callable[..., Any]) -> Callable[..., Any]:
    def function(*args: Any, **options: Any) -> Any:
        if any(isinstance(x, Symbol) for x in (*args, *options.values())):
            return called(whole.__name__, FUNCTIONS, args, options)
        return whole(*args, **options)

    return function
