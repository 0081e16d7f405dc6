"""Calls of a spec's backward on arrays in GPU memory: checked, planned and prepared once for each set of layouts, then only launched."""

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flashgen.arch import Arch
from flashgen.dtypes import by_name
from flashgen.errors import CallError
from flashgen.plan.backward import plan_backward
from flashgen.plan.geometry import Sizes
from flashgen.plan.head_shares import head_shares
from flashgen.plan.program import Program
from flashgen.render import render
from flashgen.runtime import cache
from flashgen.runtime.arguments import check_backward, check_requirements, given_name, rows_first
from flashgen.runtime.arrays import FAMILIES, DeviceFamily, Layout, liken
from flashgen.runtime.choice import faults
from flashgen.runtime.device import check, device
from flashgen.runtime.executable import OF_ROLES, ROLES, Executable, Launch
from flashgen.runtime.lengths import fresh
from flashgen.runtime.overlap import Apart
from flashgen.runtime.results import given_results, gradients
from flashgen.runtime.scratch import NO_SCRATCH, Made, Scratch
from flashgen.runtime.tuned import planned_backward, rows_class
from flashgen.spec import Spec

_CALLS_KEPT = 512  # prepared calls, one a set of shapes, strides and params


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The part of a call that calls on arrays of the same layouts share."""

    ordinal: int
    names: tuple[str, ...]  # of all addresses that a launch takes, in order
    results: Mapping[str, Made]
    apart: Apart
    scratch: Scratch
    stand_ins: Mapping[str, str]  # of an array without elements: another, whose address a tensor map takes in its place
    launch: Launch | None  # None: there is no query


class GpuBackward:
    """The backward's kernels of a spec, made as calls need them."""

    def __init__(self, spec: Spec, arch: Arch | None, candidate: str | None = None):
        self.spec, self.kernels = spec, dict[str, Executable]()
        self._candidate = candidate  # in place of what was tuned
        self._arch = arch  # None: that of the arrays' device
        self._arguments = {t.name: t.argument for t in spec.arrays}
        self._prepared: dict[tuple[Any, ...], Prepared] = {}
        self._keeping = threading.Lock()

    def serving(self, arch: Arch, layouts: Mapping[str, Layout]) -> Program:
        """The plan for arrays of these layouts, where a block takes all query heads of a key tile. Raises PlanError, SpecError."""
        by_rows = {
            name: rows_first(layout, self.spec.layout)
            for name, layout in layouts.items()
            if name in ROLES + OF_ROLES
            if 0 not in layout.shape
        }
        length = self._length(layouts)
        preferred = self.plan(arch, length)
        if not faults(preferred, by_rows):
            return preferred
        return plan_backward(self.spec, arch, min(layout.row_alignment for layout in by_rows.values()), length)

    def _length(self, layouts: Mapping[str, Layout]) -> int:
        """The class of the query rows of a sequence: by their number the start of a key tile counts."""
        rows = rows_first(layouts["q"], self.spec.layout).shape[1]
        return rows_class(rows // max(1, layouts["cu_seqlens_q"].shape[0] - 1) if self.spec.geometry.packed else rows)

    def _sharing(self, arch: Arch, layouts: Mapping[str, Layout], sizes: Sizes, params: Mapping[str, int | float]) -> Program:
        """The plan for a call: with as many blocks for the query heads of a key tile as it ends first with."""
        found = self.serving(arch, layouts)
        check_requirements(found, params)
        shares = head_shares(found, sizes, params)
        return found if shares == 1 else self.plan(arch, self._length(layouts), shares)

    def plan(self, arch: Arch, length: int, head_shares: int = 1) -> Program:
        """The plan for arrays as the architecture likes them best, fast for a class of lengths on the current card. Raises PlanError."""
        if self._candidate:
            return plan_backward(self.spec, arch, 0, length, self._candidate, head_shares)
        return planned_backward(self.spec, arch, length, head_shares=head_shares)

    def kernel(self, arch: Arch, length: int) -> Executable:
        """The kernels of that plan."""
        return self._compiled(self.plan(arch, length))

    def __call__(self, given: Mapping[str, Any], params: Mapping[str, int | float], out: Sequence[Any] = ()) -> tuple[Any, ...]:
        """The gradients. `given`: q, k, v, o, do, lse and dlse where there are, and the spec's tensors, by name; `params`: all of them;
        `out`: arrays to write to, none to have them made."""
        addresses, likes = {}, []
        for name, x in given.items():
            addresses[self._arguments.get(name, name)], like = FAMILIES[type(x)].locate(x)
            likes.append(like)
        likes += [FAMILIES[type(x)].locate(x)[1] for x in out]
        key = (tuple(given), *params.items(), *likes)
        if not (prepared := self._prepared.get(key)):
            prepared = self._prepare({name: liken(x, given_name(self.spec, name)).layout for name, x in given.items()}, params, out)
            with self._keeping:
                if len(self._prepared) >= _CALLS_KEPT:
                    del self._prepared[next(iter(self._prepared))]
                self._prepared[key] = prepared
        return self._run(prepared, given["q"], addresses, out)

    def _run(self, prepared: Prepared, q: Any, addresses: dict[str, int], out: Sequence[Any]) -> tuple[Any, ...]:
        family: DeviceFamily = FAMILIES[type(q)]
        if out:
            prepared.apart.check([*addresses.values(), *map(family.pointer, out)])
        made = dict(zip(prepared.results, out or [family.empty(*each, q) for each in prepared.results.values()], strict=True))
        known = addresses | {name: family.pointer(x) for name, x in made.items()}
        if prepared.scratch.used:
            memory = prepared.scratch.memory(family, q)
            known |= zip(prepared.scratch.arrays, prepared.scratch.at(family.pointer(memory)), strict=True)
        stream = family.stream(q)
        for name, (shape, dtype) in prepared.results.items():
            if name not in OF_ROLES or not prepared.launch:
                _clear(prepared.ordinal, known[name], math.prod(shape) * by_name(dtype).bytes, stream)
        if prepared.launch:
            known |= {name: known[other] for name, other in prepared.stand_ins.items()}
            prepared.launch([known.get(name, 0) for name in prepared.names], stream)
        return tuple(made.values())

    def _prepare(self, layouts: Mapping[str, Layout], params: Mapping[str, int | float], out: Sequence[Any]) -> Prepared:
        """A call, checked, planned and compiled."""
        spec, sizes, ordinal = self.spec, check_backward(self.spec, layouts), layouts["q"].device
        assert ordinal is not None
        for name, layout in layouts.items():
            if layout.offset % by_name(layout.dtype).bytes:
                said = given_name(spec, name)
                raise CallError(f"{said} begins between two elements, {layout.offset} bytes off a multiple of 16: pass a copy")
        results = gradients(spec, layouts)
        written = given_results(results, out) if out else fresh(results, ordinal)
        apart = Apart({**{given_name(spec, name): layout for name, layout in layouts.items()}, **written}, results if out else ())
        if not sizes.batch * sizes.q_len:
            return Prepared(ordinal=ordinal, names=(), results=results, apart=apart, scratch=NO_SCRATCH, stand_ins={}, launch=None)
        kernel = self._compiled(self._sharing(self._arch or device(ordinal).arch, {**layouts, **written}, sizes, params))
        launched, stand_ins = self.launched(kernel.program, {**layouts, **written}, sizes, ordinal)
        return Prepared(
            ordinal=ordinal,
            names=tuple(launched),
            results=results,
            apart=apart,
            scratch=Scratch.of(kernel.program, sizes),
            stand_ins=stand_ins,
            launch=kernel.prepare(launched, params, sizes),
        )

    def launched(
        self, program: Program, layouts: Mapping[str, Layout], sizes: Sizes, ordinal: int
    ) -> tuple[dict[str, Layout], dict[str, str]]:
        """The layouts of a launch by the names of its arguments; and of arrays without elements others, whose place they take."""
        found = {self._arguments.get(name, name): layout for name, layout in layouts.items()}
        found |= fresh(Scratch.of(program, sizes).arrays, ordinal)
        found |= fresh({name: ((1,), "float32") for name in ("lse", "dlse") if name not in found}, ordinal)
        stand_ins = {} if sizes.kv_len else {"k": "q", "v": "q", "dk": "dq", "dv": "dq"}
        stand_ins |= {f"embedded_{name}": other for name, other in stand_ins.items() if f"embedded_{name}" in found}
        return found | {name: found[other] for name, other in stand_ins.items()}, stand_ins

    def _compiled(self, chosen: Program) -> Executable:
        if chosen.digest not in self.kernels:
            source = render(chosen)
            self.kernels[chosen.digest] = Executable(chosen, source, cache.binary(chosen, source))
        return self.kernels[chosen.digest]


def _clear(ordinal: int, address: int, nbytes: int, stream: int) -> None:
    """Makes memory zeros, in a stream."""
    from cuda.bindings import driver

    if nbytes:
        with device(ordinal).active():
            check(*driver.cuMemsetD8Async(address, 0, nbytes, stream))
