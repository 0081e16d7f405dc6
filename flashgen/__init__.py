"""Attention kernels from a few lines of YAML.

>>> import flashgen
>>> attn = flashgen.compile("specs/causal.yaml")
>>> o = attn(q, k, v)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flashgen.api import Attention, compile  # noqa: A004
    from flashgen.appending import append
    from flashgen.attend import attention
    from flashgen.errors import BackendError, CallError, CompileError, FlashgenError, PlanError, SpecError
    from flashgen.merge import merge_states
    from flashgen.spec import Spec, load, loads
    from flashgen.theory.derive import Derivation, derive
    from flashgen.tracing import Traced, trace

_HOMES = {
    "flashgen.api": ("Attention", "compile"),
    "flashgen.appending": ("append",),
    "flashgen.attend": ("attention",),
    "flashgen.errors": ("BackendError", "CallError", "CompileError", "FlashgenError", "PlanError", "SpecError"),
    "flashgen.theory.derive": ("Derivation", "derive"),
    "flashgen.merge": ("merge_states",),
    "flashgen.spec": ("Spec", "load", "loads"),
    "flashgen.tracing": ("Traced", "trace"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Attention", "BackendError", "CallError", "CompileError", "Derivation", "FlashgenError", "PlanError", "Spec", "SpecError", "Traced",
    "append", "attention", "compile", "derive", "load", "loads", "merge_states", "trace",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'flashgen' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
