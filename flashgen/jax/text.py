"""A call of XLA as a text: all that a handler needs besides arrays."""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flashgen.api import Attention
from flashgen.attend import Sketch, attention_of, compiled, number, spec_of
from flashgen.expr.language.reads import names_index
from flashgen.runtime.arrays import Layout, contiguous_strides
from flashgen.spec import Spec
from flashgen.spec.geometry import DENSE
from flashgen.spec.layout import axis_order
from flashgen.spec.outputs import OUTPUTS


@dataclass(frozen=True, kw_only=True)
class Text:
    """A call as plain values: a spec, or the sketch of one; the names of its arrays, in order; its numbers, by name.

    `foldable`: sequences of several calls may be those of one.
    """

    what: Sketch | Spec
    arrays: tuple[str, ...]
    numbers: Mapping[str, int | float]
    foldable: bool = False

    @property
    def rank(self) -> int:
        """The axes of q in one call."""
        return len(axis_order(self.what.layout).axes)

    def attention(self, qkv: tuple[Any, Any, Any], values: Mapping[str, Any]) -> Attention:
        """The attention that a call on these arrays runs."""
        return compiled(self.what) if isinstance(self.what, Spec) else attention_of(self.what, qkv, values)

    def spec(self, layouts: Mapping[str, Layout]) -> Spec:
        """The spec of a call on arrays with these layouts, by their names."""
        if isinstance(self.what, Spec):
            return self.what
        values = {name: layouts[name] for name in self.arrays if name not in ("q", "k", "v")}
        return spec_of(self.what, {name: layouts[name] for name in "qkv"}, values | {name: number(x) for name, x in self.numbers.items()})


def layouts(given: Mapping[str, Any]) -> dict[str, Layout]:
    """The layouts of arrays without memory."""
    return {name: Layout(x.shape, contiguous_strides(x.shape), str(x.dtype), None, 0) for name, x in given.items()}


def foldable(spec: Spec) -> bool:
    """True if nothing of a call tells one sequence from another, and b is the first axis of all that has it."""
    rows = all(OUTPUTS[name].like_o or OUTPUTS[name].by_row for name in spec.outputs)
    return spec.geometry is DENSE and spec.order.axis("b") == 0 and rows and not spec.arrays and not names_index(spec, "b")


def told(text: Text) -> str:
    """The text of a call."""
    what = {"spec": text.what.to_json()} if isinstance(text.what, Spec) else {"sketch": text.what._asdict()}
    return json.dumps({**what, "arrays": text.arrays, "numbers": dict(text.numbers), "foldable": text.foldable})


@functools.lru_cache(1024)
def text_of(told: str) -> Text:
    """The call that a text stands for."""
    keys = json.loads(told)
    what = Sketch(**{key: _hashable(x) for key, x in keys["sketch"].items()}) if "sketch" in keys else Spec(**keys["spec"])
    return Text(what=what, arrays=tuple(keys["arrays"]), numbers=keys["numbers"], foldable=keys["foldable"])


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
