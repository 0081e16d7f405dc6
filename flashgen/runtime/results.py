"""The results of a backward, as arrays that are made or given."""

from collections.abc import Mapping, Sequence
from typing import Any

from flashgen.errors import CallError
from flashgen.runtime.arrays import Layout, liken
from flashgen.runtime.scratch import Made
from flashgen.spec import Spec
from flashgen.spec.words import gradient


def gradients(spec: Spec, layouts: Mapping[str, Layout]) -> dict[str, Made]:
    """The results of a backward: dq, dk, dv, and by `gradient` of their names those of tensors and params; each is like what it is of."""
    shapes = {f"d{name}": (layouts[name].shape, spec.dtype) for name in ("q", "k", "v")}
    return shapes | {gradient(one.name): (layouts[one.name].shape if one.name in layouts else (), "float32") for one in spec.with_grad}


def given_results(results: Mapping[str, Made], out: Sequence[Any]) -> dict[str, Layout]:
    """The layouts of the arrays that a caller gives for results. Raises CallError for those that are not like them."""
    found = {name: liken(x, f"out for {name}").layout for name, x in zip(results, out, strict=True)}
    for name, layout in found.items():
        if (layout.shape, layout.dtype) != results[name] or not layout.contiguous:
            shape, dtype = results[name]
            raise CallError(f"out for {name} is {layout.dtype} {list(layout.shape)}: expected {dtype} {list(shape)}, contiguous")
    return found
