"""Modules of JAX as traced functions read them: functions of theirs make symbols of symbols, of which JAX itself would want shapes."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from flashgen.tracing.names import FUNCTIONS
from flashgen.tracing.symbol import Symbol, called, fault

UNLIKE = {  # functions of jax.lax that are not what NumPy and PyTorch call so
    "div": "of integers it rounds towards 0: write //, or jnp.divide",
    "round": "it rounds halves away from 0: write jnp.round",
}


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
        if not any(isinstance(x, Symbol) for x in (*args, *options.values())):
            return whole(*args, **options)
        if "lax" in whole.__module__.split(".") and whole.__name__ in UNLIKE:
            raise fault(f"no expression has jax.lax.{whole.__name__}", UNLIKE[whole.__name__])
        return _gelu(*args, **options) if whole.__name__ == "gelu" else called(whole.__name__, FUNCTIONS, args, options)

    return function


def _gelu(x: Any, approximate: bool = True) -> Symbol:
    """JAX's gelu, by tanh unless it is told otherwise; PyTorch's is exact."""
    return called("gelu", FUNCTIONS, (x,), {"approximate": "tanh" if approximate else "none"})
