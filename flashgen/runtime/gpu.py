"""Calls of one spec on arrays in GPU memory: checked, planned and prepared once for each set of layouts, then only launched."""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flashgen.arch import Arch
from flashgen.dtypes import by_name
from flashgen.errors import CallError
from flashgen.plan import plan
from flashgen.plan.model import Plan
from flashgen.plan.search import LENGTHS
from flashgen.render import render
from flashgen.runtime import arrays, cache, tma
from flashgen.runtime.arguments import check_arrays, check_values, output_shapes, rows_first
from flashgen.runtime.arrays import Layout, contiguous_strides
from flashgen.runtime.device import device
from flashgen.runtime.kernel import Kernel, Launch
from flashgen.spec import Spec

_CALLS_KEPT = 512  # prepared calls, one a set of shapes, strides and params
_OUTPUT_OFFSET = 0  # of new arrays from a multiple of 16 bytes; pools give 256 or 512


@functools.lru_cache(256)
def _kernel(chosen: Plan) -> Kernel:
    source = render(chosen)
    return Kernel(chosen, source, cache.binary(chosen, source))


@dataclass(frozen=True)
class _Prepared:
    """What calls on arrays of the same layouts share."""

    ordinal: int
    missing: tuple[tuple[str, tuple[int, ...], str], ...]  # outputs to make: name, shape, dtype
    launch: Launch | None  # None: there is no query
    without_keys: bool = False
    unread: int = 0  # bytes of an lse that nobody asked for, and the kernel writes all the same


_UNREAD: dict[int, list[Any]] = {}  # by device: kept for good, because kernels in any stream may still write there


def _unread(ordinal: int, nbytes: int) -> int:
    """The address of memory that is written and never read."""
    kept = _UNREAD.setdefault(ordinal, [])
    if not kept or kept[-1].nbytes < nbytes:
        with arrays.cupy().cuda.Device(ordinal):
            kept.append(arrays.cupy().empty(max(nbytes, 2 * kept[-1].nbytes if kept else 0), "u1"))
    return int(kept[-1].data.ptr)


class Gpu:
    """The kernels of a spec, made as calls need them. `reasons` tells why a call does not run the first plan of its device."""

    def __init__(self, spec: Spec, arch: Arch | None):
        self.spec, self.kernels = spec, dict[str, Kernel]()
        self.reasons: dict[str, None] = {}
        self._arch = arch  # None: that of the arrays' device
        self._prepared: dict[tuple[Any, ...], _Prepared] = {}

    def kernel(self, arch: Arch, copy_bytes: int = 0, keys: int = LENGTHS[-1]) -> Kernel:
        """The kernel for arrays whose rows are aligned to `copy_bytes` (0: as the architecture likes them best), fast for so many keys."""
        length = next((n for n in LENGTHS if keys <= n), LENGTHS[-1])
        chosen = plan(self.spec, arch.name, copy_bytes, length)
        if chosen.digest not in self.kernels:
            self.kernels[chosen.digest] = _kernel(chosen)
        return self.kernels[chosen.digest]

    def __call__(self, given: Mapping[str, Any], outputs: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
        """o and lse. `given`: q, k, v and tensors by name; `outputs`: those of o and lse that the caller provides."""
        addresses, keys = {}, []
        for group in (given, outputs):
            for name, x in group.items():
                addresses[name], key = arrays.family_of(x).locate(x)
                keys.append(key)
        known = (*keys, *params.items())
        prepared = self._prepared.get(known)
        if prepared is None:
            prepared = self._prepare(given, outputs, params)
            if len(self._prepared) == _CALLS_KEPT:
                self._prepared.pop(next(iter(self._prepared)), None)
            self._prepared[known] = prepared
        family = arrays.device_family(given["q"])
        results = dict(outputs)
        for name, shape, dtype in prepared.missing:
            results[name] = made = family.empty(shape, dtype, prepared.ordinal)
            addresses[name], _ = family.locate(made)
        if prepared.without_keys:  # nothing is read through k and v, but a tensor map wants an address
            addresses |= {"k": addresses["q"], "v": addresses["o"]}
        if prepared.unread:
            addresses["lse"] = _unread(prepared.ordinal, prepared.unread)
        if prepared.launch:
            prepared.launch(addresses, family.stream(prepared.ordinal))
        return results

    def _prepare(self, given: Mapping[str, Any], outputs: Mapping[str, Any], params: Mapping[str, Any]) -> _Prepared:
        layouts = {name: arrays.view(x, name).layout for name, x in {**given, **outputs}.items()}
        sizes = check_arrays(self.spec, layouts)
        ordinal = layouts["q"].device
        assert ordinal is not None
        for name, layout in layouts.items():
            if layout.offset % by_name(layout.dtype).bytes:
                raise CallError(f"{name} begins between two elements, {layout.offset} bytes off a multiple of 16: pass a copy")
        if "lse" in outputs and not layouts["lse"].contiguous:
            raise CallError(f"lse has strides {layouts['lse'].strides}: it has to be contiguous")
        dtypes = {"o": self.spec.dtype, "lse": "float32"}
        shapes = output_shapes(self.spec, sizes)
        made = {name: shape for name, shape in shapes.items() if name not in outputs}
        layouts |= {name: Layout(shape, contiguous_strides(shape), dtypes[name], ordinal, _OUTPUT_OFFSET) for name, shape in made.items()}
        unread = 4 * math.prod(made.pop("lse")) if "lse" in made and "lse" not in self.spec.outputs else 0
        missing = tuple((name, shape, dtypes[name]) for name, shape in made.items())
        arch = self._arch or device(ordinal).arch
        first = plan(self.spec, arch.name)
        values = check_values(first, params)
        if not sizes.batch * sizes.q_len:
            return _Prepared(ordinal, missing, None)
        if not sizes.kv_len:
            layouts |= {"k": layouts["q"], "v": layouts["o"]}
        kernel = self.kernel(arch, self._copy_bytes(first, layouts), sizes.kv_len)
        return _Prepared(ordinal, missing, kernel.prepare(layouts, values, sizes), not sizes.kv_len, unread)

    def _copy_bytes(self, first: Plan, layouts: Mapping[str, Layout]) -> int:
        """0 where the first plan serves these arrays, else what all their rows are aligned to."""
        by_rows = {name: rows_first(layouts[name], self.spec.layout) for name in ("q", "k", "v", "o")}
        aligned = min(layout.row_alignment for layout in by_rows.values())
        if any(argument.kind == "tensor_map" for argument in first.launch.arguments):
            faults = {name: tma.addressable(layout) for name, layout in by_rows.items()}
        else:
            least = first.pipeline.copy_bytes
            faults = {
                n: f"rows are aligned to {x.row_alignment} bytes, not {least}" if x.row_alignment < least else None
                for n, x in by_rows.items()
            }
        if not any(faults.values()):
            return 0
        why = "; ".join(f"{name}: {fault}" for name, fault in faults.items() if fault)
        self.reasons[f"{why}. So a kernel that copies {aligned} bytes at a time serves such calls"] = None
        return aligned
