"""An operator's work as a text: a spec, or the expressions of a call without one, and the names of its values."""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from flashgen.api import Attention
from flashgen.attend import Sketch, attention_of, check_words, compiled, number, spec_of
from flashgen.errors import CallError
from flashgen.further import further
from flashgen.runtime.arrays import Layout, name_of
from flashgen.spec import Spec


@dataclass(frozen=True, kw_only=True)
class Text:
    """An operator's work, and the names of its values: of arrays, of integers and of other numbers, each in order."""

    what: Sketch | Spec
    arrays: tuple[str, ...]
    integers: tuple[str, ...]
    numbers: tuple[str, ...]

    def named(self, arrays: Sequence[Any], integers: Sequence[Any] | None, numbers: Sequence[Any] | None) -> dict[str, Any]:
        """The values of a call by name. None: there is no such number."""
        return dict(zip((*self.arrays, *self.integers, *self.numbers), (*arrays, *(integers or ()), *(numbers or ())), strict=True))

    def attention(self, qkv: tuple[Any, Any, Any], named: Mapping[str, Any]) -> Attention:
        """The attention that a call on these tensors runs."""
        return compiled(self.what) if isinstance(self.what, Spec) else attention_of(self.what, qkv, named)

    def spec(self, qkv: Mapping[str, torch.Tensor], named: Mapping[str, Any]) -> Spec:
        """The spec of a call on tensors that may have no memory, and whose sizes may be symbols."""
        return self.what if isinstance(self.what, Spec) else spec_of(self.what, layouts(qkv), {name: _kind(x) for name, x in named.items()})


def _kind(value: Any) -> Any:
    """The declaration of a value in a spec; of a number that only the run knows, a default of its type."""
    match value:
        case torch.Tensor() if value.dim():
            return layouts({"": value})[""]
        case torch.Tensor():
            return number(1.0 if value.is_floating_point() else 1)
        case torch.SymInt():
            return number(1)
        case torch.SymFloat():
            return number(1.0)
    return number(value)


def layouts(tensors: Mapping[str, torch.Tensor | None]) -> dict[str, Layout]:
    """The layouts of tensors that may have no memory; of those that are there."""
    found = {name: x for name, x in tensors.items() if x is not None}
    return {
        name: Layout(tuple(x.shape), tuple(x.stride()), name_of(x.dtype), None if x.is_cpu else x.get_device(), 0)
        for name, x in found.items()
    }


@functools.lru_cache(1024)
def text_of(text: str) -> Text:
    """The work that a text stands for."""
    keys = json.loads(text)
    what = Sketch(**{key: _hashable(x) for key, x in keys["sketch"].items()}) if "sketch" in keys else Spec(**keys["spec"])
    return Text(what=what, **{kind: tuple(keys[kind]) for kind in _KINDS})


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


_KINDS = ("arrays", "integers", "numbers")
Names = tuple[tuple[str, ...], ...]  # of each kind


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def known(fields: tuple[Any, ...], names: tuple[str, ...]) -> bool:
    """True for the names of values of a Sketch, given as its fields. Raises CallError for one that no expression has."""
    if "out" in names:
        raise CallError("out is given, and compilers and transforms of PyTorch want new results: leave out out")
    check_words(Sketch._make(fields), names)
    return True


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def text_of_sketch(fields: tuple[Any, ...], names: Names) -> str:
    """The text for a call without a spec, given as the fields of a Sketch."""
    return _text({"sketch": Sketch._make(fields)._asdict()}, names)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def text_of_spec(spec: str, names: Names) -> str:
    """The text for a spec, given as JSON."""
    return _text({"spec": json.loads(spec)}, names)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def told(*words: Any) -> str:
    """The words of `flashgen.further` as a text."""
    return further(*words)


def _text(what: dict[str, Any], names: Names) -> str:
    return json.dumps(what | dict(zip(_KINDS, names, strict=True)))


def sorted_out(values: Mapping[str, Any]) -> tuple[Names, tuple[Any, ...]]:
    """The names of values, and the values: tensors, integers and other numbers apart, None where there is no such number. Raises CallError
    for what is neither.

    A program is written to a file with lists of one type alone, of which an empty one has none.
    """
    for name, x in values.items():
        if isinstance(x, bool) or not isinstance(x, torch.Tensor | int | float):
            raise CallError(f"{name} is a {type(x).__name__}: expected a tensor or a number")
    arrays = {name: x for name, x in values.items() if isinstance(x, torch.Tensor)}
    integers = {name: x for name, x in values.items() if name not in arrays and isinstance(x, int)}
    numbers = {name: x for name, x in values.items() if name not in arrays and name not in integers}
    parts = list(arrays.values()), list(integers.values()) or None, list(numbers.values()) or None
    return (tuple(arrays), tuple(integers), tuple(numbers)), parts
