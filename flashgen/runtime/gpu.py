"""Calls of one spec on arrays in GPU memory: checked, planned and prepared once for each set of layouts, then only launched."""

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from flashgen.arch import Arch
from flashgen.dtypes import by_name
from flashgen.errors import CallError
from flashgen.plan import plan
from flashgen.plan.program import Program
from flashgen.plan.search import LENGTHS
from flashgen.render import render
from flashgen.runtime import cache
from flashgen.runtime.arguments import check_arrays, check_values, output_shapes
from flashgen.runtime.arrays import FAMILIES, DeviceFamily, Key, Layout, liken
from flashgen.runtime.axes import Axes
from flashgen.runtime.choice import Choice
from flashgen.runtime.device import device
from flashgen.runtime.executable import Executable
from flashgen.runtime.lengths import Pattern, Prepared, Turns, fresh
from flashgen.runtime.overlap import Apart
from flashgen.runtime.scratch import NO_SCRATCH, Scratch
from flashgen.runtime.tuned import length_class
from flashgen.spec import Spec
from flashgen.spec.outputs import fill_empty

_CALLS_KEPT = 512  # prepared calls, one a set of shapes, strides and params
_PATTERNS_KEPT, _STATES = 64, 4  # each for all lengths of a class; of one, so that some lengths may take turns
V = TypeVar("V")


@functools.lru_cache(256)
def _kernel(chosen: Program) -> Executable:
    source = render(chosen)
    return Executable(chosen, source, cache.binary(chosen, source))


class Gpu:
    """The kernels of a spec, made as calls need them."""

    def __init__(self, spec: Spec, arch: Arch | None, choice: Choice | None = None, counter: int | None = None):
        """`counter`: the address of one for all launches; None: each stream has its own."""
        self.spec, self.kernels, self.choice = spec, dict[str, Executable](), choice or Choice(spec)
        self.arch = arch  # None: that of the arrays' device
        self._counter = counter
        self._prepared: dict[tuple[Any, ...], Prepared] = {}
        self._patterns: dict[tuple[Any, ...], Turns] = {}
        self._latest = Turns()  # that calls were adapted from
        names = ("q", "k", "v", *(t.name for t in spec.arrays))
        self._axes, self._axes_out = Axes(spec, names), Axes(spec, (*names, *spec.outputs))
        self._keeping = threading.Lock()

    def kernel(self, arch: Arch, keys: int = LENGTHS[-1]) -> Executable:
        """The kernel for arrays as the architecture likes them best, fast for so many keys on the current card."""
        return self._compiled(self.choice.plan(arch, 0, length_class(keys)))

    def _compiled(self, chosen: Program) -> Executable:
        if chosen.digest not in self.kernels:
            self.kernels[chosen.digest] = _kernel(chosen)
        return self.kernels[chosen.digest]

    def __call__(self, given: tuple[Any, ...], out: tuple[Any, ...], params: Mapping[str, int | float]) -> tuple[Any, ...]:
        """The outputs. `given`: q, k, v and the spec's tensors; `out`: the arrays to write to, or none, to have them made."""
        addresses, likes = [], []
        try:
            for x in given + out:
                pointer, like = FAMILIES[type(x)].locate(x)
                addresses.append(pointer)
                likes.append(like)
        except CallError:
            for name, x in zip(self._axes_out.names, given + out, strict=False):
                liken(x, name)  # raises it by its name
            raise
        key = (*params.items(), *likes)
        if prepared := self._prepared.get(key):
            return self._run(given[0], out, addresses, prepared)
        latest, call = self._latest, (given[0], out, addresses)
        if results := self._adapted(latest, 1, likes, params, call):
            return results
        same = (self._axes_out if out else self._axes).key(tuple(params.items()), likes)
        turns = self._patterns.get(same) or Turns()
        self._latest = turns
        if results := self._adapted(turns, _STATES - (turns is latest), likes, params, call):
            return results
        prepared, pattern = self.prepare(given, out, params, likes)
        self._keep(self._prepared, key, prepared, _CALLS_KEPT)
        if pattern:
            turns.add(pattern, _STATES)
            self._keep(self._patterns, same, turns, _PATTERNS_KEPT)
        return self._run(*call, prepared)

    def _adapted(
        self,
        turns: Turns,
        attempts: int,
        likes: Sequence[Key],
        params: Mapping[str, int | float],
        call: tuple[Any, tuple[Any, ...], list[int]],
    ) -> tuple[Any, ...] | None:
        """The outputs of a call that a pattern is adapted to; None if none of so many that are tried fits. `call`: what `_run` takes."""
        for _ in range(attempts):
            pattern = turns.pattern(likes, _STATES)
            if pattern is None:
                return None
            if pattern.params == params:
                with pattern.lock:
                    if prepared := pattern.adapted(likes):
                        return self._run(*call, prepared)
        return None

    def _run(self, q: Any, out: tuple[Any, ...], addresses: list[int], prepared: Prepared) -> tuple[Any, ...]:
        """Launches. `addresses`: of what is given and of `out`."""
        if out:
            prepared.apart.check(addresses)
        family: DeviceFamily = FAMILIES[type(q)]
        if not out:
            out = tuple([family.empty(shape, dtype, q) for shape, dtype in prepared.outputs.values()])
            addresses += map(family.pointer, out)
        if prepared.launch:
            if prepared.scratch.used:
                memory = prepared.scratch.memory(family, q)
                addresses += prepared.scratch.at(family.pointer(memory))
            else:
                addresses += [0] * len(prepared.scratch.places)
            if prepared.without_keys:  # nothing is read through k and v, but a tensor map wants an address
                addresses[1] = addresses[2] = addresses[0]
            prepared.launch(addresses, family.stream(q))
        else:
            fill_empty(dict(zip(self.spec.outputs, out, strict=True)))
        return out

    def _keep(self, kept: dict[tuple[Any, ...], V], key: tuple[Any, ...], value: V, most: int) -> None:
        """Keeps a prepared call; the oldest makes room."""
        with self._keeping:
            if len(kept) >= most:
                del kept[next(iter(kept))]
            kept[key] = value

    def bound(
        self, given: tuple[Any, ...], out: tuple[Any, ...], params: Mapping[str, int | float]
    ) -> Callable[[list[int], Any], None] | None:
        """The launch of a call on arrays like these, from addresses of `given` and `out`, and an array, in whose stream it is; None if no
        query is there. Raises CallError, PlanError, SpecError, CompileError, BackendError."""
        prepared, _ = self.prepare(given, out, params, None)

        def launch(addresses: list[int], beside: Any) -> None:
            self._run(beside, out, addresses, prepared)

        return launch if prepared.launch else None

    def prepare(
        self, given: tuple[Any, ...], out: tuple[Any, ...], params: Mapping[str, int | float], likes: Sequence[Key] | None
    ) -> tuple[Prepared, Pattern | None]:
        """A call, checked, planned and compiled; and, with `likes`, a pattern for others, if arrays are as the architecture wants them.
        Raises CallError, PlanError, SpecError, CompileError, BackendError."""
        spec, axes = self.spec, self._axes_out if out else self._axes
        layouts = of_call = {name: liken(x, name).layout for name, x in zip(axes.names, given + out, strict=True)}
        sizes = check_arrays(spec, layouts)
        ordinal = layouts["q"].device
        assert ordinal is not None
        _check_places(spec, layouts)
        apart = Apart(of_call, spec.outputs if out else ())
        shapes = output_shapes(spec, sizes)
        outputs = {name: (shapes[name], spec.output_element(name).name) for name in spec.outputs}
        if not out:
            layouts = layouts | fresh(outputs, ordinal)
        target = device(ordinal)
        arch = self.arch or target.arch
        values = check_values(plan(spec, arch.name), params)
        if not sizes.batch * sizes.q_len:
            return Prepared(ordinal=ordinal, outputs=outputs, scratch=NO_SCRATCH, launch=None, apart=apart), None
        kernel = self._compiled(self.choice.serving(arch, layouts, target.name))
        without_keys = 0 in layouts["k"].shape
        if without_keys:
            layouts = {**layouts, "k": layouts["q"], "v": layouts["q"]}
        scratch = Scratch.of(kernel.program, sizes)
        arguments = {t.name: t.argument for t in spec.arrays}
        launched = {arguments.get(name, name): layout for name, layout in layouts.items()} | fresh(scratch.arrays, ordinal)
        prepared = Prepared(
            ordinal=ordinal,
            outputs=outputs,
            scratch=scratch,
            launch=kernel.prepare(launched, values, sizes, self._counter),
            apart=apart,
            without_keys=without_keys,
        )
        length, asked_for = self.choice.kind(arch, sizes)
        preferred = self.choice.plan(arch, 0, length, target.name, asked_for)
        if likes is None or not sizes.kv_len or kernel.program.digest != preferred.digest:
            return prepared, None
        own = replace(
            prepared, launch=kernel.prepare(launched, values, sizes, self._counter), apart=Apart(of_call, spec.outputs if out else ())
        )
        families = [FAMILIES[type(x)] for x in given + out]
        return prepared, Pattern(axes, params, likes, families, kernel.program, sizes, own, functools.partial(self.choice.kind, arch))


def _check_places(spec: Spec, layouts: Mapping[str, Layout]) -> None:
    for name, layout in layouts.items():
        if layout.offset % by_name(layout.dtype).bytes:
            raise CallError(f"{name} begins between two elements, {layout.offset} bytes off a multiple of 16: pass a copy")
        if name in spec.outputs[1:] and not layout.contiguous:
            raise CallError(f"{name} has strides {layout.strides}: it has to be contiguous")
