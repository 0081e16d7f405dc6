"""Calls of one spec on arrays in GPU memory: checked, planned and prepared once for each set of layouts, then only launched."""

import functools
import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flashgen.arch import Arch
from flashgen.dtypes import by_name
from flashgen.errors import CallError
from flashgen.plan import plan
from flashgen.plan.model import Plan
from flashgen.plan.params import shape as shape_of
from flashgen.plan.search import LENGTHS
from flashgen.render import render
from flashgen.runtime import cache
from flashgen.runtime.arguments import check_arrays, check_values, output_shapes
from flashgen.runtime.arrays import FAMILIES, DeviceFamily, Layout, contiguous_strides, liken
from flashgen.runtime.choice import Choice
from flashgen.runtime.device import device
from flashgen.runtime.kernel import Kernel, Launch
from flashgen.runtime.overlap import Apart
from flashgen.runtime.tuned import length_class
from flashgen.spec import Spec

_CALLS_KEPT = 512  # prepared calls, one a set of shapes, strides and params
_OUTPUT_OFFSET = 0  # of new arrays from a multiple of 16 bytes; pools give 256 or 512


@functools.lru_cache(256)
def _kernel(chosen: Plan) -> Kernel:
    source = render(chosen)
    return Kernel(chosen, source, cache.binary(chosen, source))


_Made = tuple[tuple[int, ...], str]  # the shape and dtype of an array to make


def _fresh(made: Mapping[str, _Made], ordinal: int) -> dict[str, Layout]:
    """The layouts that new arrays will have."""
    return {name: Layout(shape, contiguous_strides(shape), dtype, ordinal, _OUTPUT_OFFSET) for name, (shape, dtype) in made.items()}


@dataclass(frozen=True)
class _Prepared:
    """What calls on arrays of the same layouts share."""

    ordinal: int
    outputs: tuple[_Made, ...]
    scratch: tuple[_Made, ...]  # what the kernels hand to each other
    launch: Launch | None  # None: there is no query
    apart: Apart
    without_keys: bool = False


class Gpu:
    """The kernels of a spec, made as calls need them."""

    def __init__(self, spec: Spec, arch: Arch | None, candidate: str | None = None):
        self.spec, self.kernels, self.choice = spec, dict[str, Kernel](), Choice(spec, candidate)
        self._arch = arch  # None: that of the arrays' device
        self._prepared: dict[tuple[Any, ...], _Prepared] = {}
        self._keeping = threading.Lock()

    def kernel(self, arch: Arch, keys: int = LENGTHS[-1]) -> Kernel:
        """The kernel for arrays as the architecture likes them best, fast for so many keys on the current card."""
        return self._compiled(self.choice.plan(arch, 0, length_class(keys)))

    def _compiled(self, chosen: Plan) -> Kernel:
        if chosen.digest not in self.kernels:
            self.kernels[chosen.digest] = _kernel(chosen)
        return self.kernels[chosen.digest]

    def __call__(self, given: tuple[Any, ...], out: tuple[Any, ...], params: Mapping[str, int | float]) -> tuple[Any, ...]:
        """The outputs. `given`: q, k, v and the spec's tensors; `out`: the arrays to write to, or none, to have them made."""
        addresses, key = [], [*params.items()]
        for x in given + out:
            pointer, like = FAMILIES[type(x)].locate(x)
            addresses.append(pointer)
            key.append(like)
        prepared = self._prepared.get(tuple(key)) or self._keep(tuple(key), self._prepare(given, out, params))
        if out:
            prepared.apart.check(addresses)
        q = given[0]
        family: DeviceFamily = FAMILIES[type(q)]
        if not out:
            out = tuple([family.empty(shape, dtype, q) for shape, dtype in prepared.outputs])
            addresses += map(family.pointer, out)
        if prepared.launch:
            if prepared.scratch:
                held = [family.scratch(shape, dtype, q) for shape, dtype in prepared.scratch]
                addresses += map(family.pointer, held)
            if prepared.without_keys:  # nothing is read through k and v, but a tensor map wants an address
                addresses[1] = addresses[2] = addresses[0]
            prepared.launch(addresses, family.stream(prepared.ordinal))
        elif "max_logit" in self.spec.outputs:
            out[self.spec.outputs.index("max_logit")][...] = -math.inf  # of no row
        return out

    def _keep(self, key: tuple[Any, ...], prepared: _Prepared) -> _Prepared:
        with self._keeping:
            if len(self._prepared) >= _CALLS_KEPT:
                del self._prepared[next(iter(self._prepared))]
            self._prepared[key] = prepared
        return prepared

    def _prepare(self, given: tuple[Any, ...], out: tuple[Any, ...], params: Mapping[str, int | float]) -> _Prepared:
        spec = self.spec
        names = ("q", "k", "v", *(t.name for t in spec.tensors), *(spec.outputs if out else ()))
        layouts = {name: liken(x, name).layout for name, x in zip(names, given + out, strict=True)}
        sizes = check_arrays(spec, layouts)
        ordinal = layouts["q"].device
        assert ordinal is not None
        for name, layout in layouts.items():
            if layout.offset % by_name(layout.dtype).bytes:
                raise CallError(f"{name} begins between two elements, {layout.offset} bytes off a multiple of 16: pass a copy")
        for name in spec.outputs[1:] if out else ():
            if not layouts[name].contiguous:
                raise CallError(f"{name} has strides {layouts[name].strides}: it has to be contiguous")
        apart = Apart(layouts, spec.outputs if out else ())
        shapes = output_shapes(spec, sizes)
        outputs = {name: (shapes[name], spec.out_element.name if name == "o" else "float32") for name in spec.outputs}
        if not out:
            layouts |= _fresh(outputs, ordinal)
        target = device(ordinal)
        arch = self._arch or target.arch
        first = plan(spec, arch.name)
        values = check_values(first, params)
        if not sizes.batch * sizes.q_len:
            return _Prepared(ordinal, tuple(outputs.values()), (), None, apart)
        if not sizes.kv_len:
            layouts |= {"k": layouts["q"], "v": layouts["q"]}
        kernel = self._compiled(self.choice.serving(arch, layouts, target.name))
        scratch = {s.name: (shape_of(s, sizes), s.dtype) for s in kernel.plan.launch.scratch}
        arguments = {t.name: t.argument for t in spec.tensors}
        launched = {arguments.get(name, name): layout for name, layout in layouts.items()}
        launch = kernel.prepare(launched | _fresh(scratch, ordinal), values, sizes)
        return _Prepared(ordinal, tuple(outputs.values()), tuple(scratch.values()), launch, apart, not sizes.kv_len)
