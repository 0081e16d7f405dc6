"""Kernels and arguments of a program as JSON values, from which its digest is made."""

import dataclasses
from typing import TYPE_CHECKING, Any

from flashgen.plan.kernel import Kernel

if TYPE_CHECKING:
    from flashgen.plan.program import Argument

_USUAL: dict[str, dict[str, object]] = {  # members of plans that most programs have so, and that do not tell those apart
    "dealing": {"shares": None, "grouped": False, "listed": ""},
    "workers": {"strands": 1, "in_turn": False, "in_cluster": False, "each": 1},
    "grid": {"cluster": 1},
}


def of_argument(argument: "Argument") -> dict[str, Any]:
    """The members of an argument."""
    found = dataclasses.asdict(argument)
    return found if argument.grouped else {name: value for name, value in found.items() if name != "grouped"}  # which few have


def of_kernel(kernel: Kernel) -> dict[str, Any]:
    """The parts of a kernel, without what most have so."""
    parts = {f.name: getattr(kernel, f.name) for f in dataclasses.fields(kernel) if f.name not in ("ranges", "mask")}
    plain: dict[str, Any] = {name: part if isinstance(part, str | int | None) else dataclasses.asdict(part) for name, part in parts.items()}
    for part in _USUAL.keys() & plain.keys():
        plain[part] = {name: x for name, x in plain[part].items() if name not in _USUAL[part] or x != _USUAL[part][name]}
    return plain
