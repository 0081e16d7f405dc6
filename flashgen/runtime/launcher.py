"""Calls of one spec with a plan and memory of their own, made before the first: nothing is chosen or allocated when they come."""

import functools
import threading
import weakref
from collections.abc import Mapping
from typing import Any

from flashgen.arch import Arch
from flashgen.errors import CallError
from flashgen.plan.geometry import Sizes
from flashgen.plan.program import Program
from flashgen.plan.shares import Demand
from flashgen.runtime.arguments import check_names, rows_first
from flashgen.runtime.arrays import FAMILIES, DeviceFamily, Key, Layout
from flashgen.runtime.axes import Axes
from flashgen.runtime.choice import Choice, faults
from flashgen.runtime.device import Device, check
from flashgen.runtime.gpu import Gpu
from flashgen.runtime.lengths import Pattern, Prepared
from flashgen.runtime.scratch import largest
from flashgen.spec import Spec
from flashgen.spec.outputs import fill_empty

_PATTERNS_KEPT = 64
_COUNTER_BYTES = 256  # in front of the workspace, which stays aligned


class Pinned(Choice):
    """One plan for all calls up to some lengths."""

    def __init__(self, spec: Spec, program: Program, bounds: Sizes):
        super().__init__(spec)
        self.program, self.bounds = program, bounds

    def plan(self, *_: Any) -> Program:
        """The plan, whatever is asked for."""
        return self.program

    def kind(self, arch: Arch, sizes: Sizes) -> tuple[int, Demand]:  # noqa: ARG002
        """The same for all lengths within the bounds."""
        return int(self._beyond(sizes) is None), Demand()

    def serving(self, arch: Arch, layouts: Mapping[str, Layout], card: str | None = None) -> Program:  # noqa: ARG002
        """The plan. Raises CallError for lengths beyond the bounds, and for arrays that it cannot address."""
        if fault := self._beyond(self.sizes(layouts)):
            raise CallError(f"{fault}: prepare a launcher with larger bounds")
        found = faults(self.program, {x: rows_first(layouts[x], self.spec.layout_of(x)) for x in "qkvo" if 0 not in layouts[x].shape})
        if found:
            raise CallError(f"{'; '.join(found)}: the launcher's kernel cannot address that. Pass a copy, or call the attention itself")
        return self.program

    def _beyond(self, sizes: Sizes) -> str | None:
        """The reason why lengths are beyond the bounds, or None."""
        for name in ("batch", "q_len", "kv_len"):
            found, most = getattr(sizes, name), getattr(self.bounds, name)
            if found > most:
                return f"{name} is {found}, and the launcher is for max_{name}={most}"
        if (sizes.heads, sizes.kv_heads) != (self.bounds.heads, self.bounds.kv_heads):
            prepared = f"{self.bounds.heads} and {self.bounds.kv_heads}"
            return f"q has {sizes.heads} heads and k {sizes.kv_heads}, and the launcher is for heads and kv_heads of {prepared}"
        return None


class Launcher:
    """Launches a spec on arrays of lengths up to some bounds. Made by `Attention.prepare`.

    >>> run = attn.prepare(max_batch=64, max_q_len=1, max_kv_len=32768, heads=32, kv_heads=8)
    >>> run(q, k, v, kv_lens=kv_lens, block_table=block_table, out=o)

    A call allocates nothing and waits for nothing, so a CUDA graph may capture it, also the first; lengths and pages on the device may
    change between replays. Its memory, `workspace_bytes`, is shared by all of its calls: they follow each other, in one stream or in
    streams that wait for each other, and graphs that captured one live no longer than the launcher.
    """

    def __init__(self, gpu: Gpu, target: Device, bounds: Sizes, params: Mapping[str, int | float]):
        self.spec, self.bounds = gpu.spec, bounds
        arch = gpu.arch or target.arch
        length, asked_for = gpu.choice.kind(arch, bounds)
        self.program = gpu.choice.plan(arch, 0, length, target.name, asked_for)
        self.workspace_bytes = largest(self.program, bounds)
        self._target, self._params, self._lock = target, params, threading.Lock()
        counter = _memory(self, target, _COUNTER_BYTES + self.workspace_bytes)
        self._workspace = counter + _COUNTER_BYTES
        self._gpu = Gpu(self.spec, arch, choice=Pinned(self.spec, self.program, bounds), counter=counter)
        self._gpu.kernel(arch).on(target)  # compiled and loaded
        self._tensors = tuple(t.name for t in self.spec.arrays)
        self._needed = frozenset(self._tensors)
        self._axes = Axes(self.spec, ("q", "k", "v", *self._tensors, *self.spec.outputs))
        self._pattern: Pattern | None = None
        self._patterns: dict[tuple[Any, ...], Pattern] = {}  # of calls that differ in more than lengths, as in the batch

    def __call__(self, q: Any, k: Any, v: Any, *, out: Any, **tensors: Any) -> Any:
        """`out`, written to: o, or a tuple of what the spec's outputs say. Arrays are of CuPy or PyTorch, as a call of the attention takes
        them. Raises CallError when they do not fit, or are longer than what was prepared."""
        if tensors.keys() != self._needed:
            self._refuse(tensors)
        outputs = out if isinstance(out, tuple) else (out,)
        given = (q, k, v, *[tensors[name] for name in self._tensors])
        addresses, likes = [], []
        for x in (*given, *outputs):
            family = FAMILIES[type(x)]
            if not family:
                raise CallError(f"an argument is a {type(x).__name__}: a launcher takes arrays of CuPy and PyTorch")
            pointer, like = family.locate(x)
            addresses.append(pointer)
            likes.append(like)
        with self._lock:
            pattern = self._pattern
            prepared = (pattern and pattern.adapted(likes)) or self._other(given, outputs, likes)
            self._launch(prepared, q, outputs, addresses)
        return out

    def _launch(self, prepared: Prepared, q: Any, outputs: tuple[Any, ...], addresses: list[int]) -> None:
        prepared.apart.check(addresses)
        if not prepared.launch:
            fill_empty(dict(zip(self.spec.outputs, outputs, strict=True)))
            return
        addresses += prepared.scratch.at(self._workspace)
        if prepared.without_keys:  # nothing is read through k and v, but a tensor map wants an address
            addresses[1] = addresses[2] = addresses[0]
        family: DeviceFamily = FAMILIES[type(q)]
        prepared.launch(addresses, family.stream(q))

    def _other(self, given: tuple[Any, ...], outputs: tuple[Any, ...], likes: list[Key]) -> Prepared:
        """A call whose arrays differ from those of the last one in more than lengths: as one before it, or the first of its kind."""
        kind = self._axes.key((), likes) if len(outputs) == len(self.spec.outputs) else ()
        pattern = self._patterns.get(kind)
        if pattern and (prepared := pattern.adapted(likes)):
            self._pattern = pattern
            return prepared
        prepared, self._pattern = self._prepare(given, outputs, likes)
        if self._pattern and kind:
            if len(self._patterns) >= _PATTERNS_KEPT:
                self._patterns.clear()
            self._patterns[kind] = self._pattern
        return prepared

    def _prepare(self, given: tuple[Any, ...], outputs: tuple[Any, ...], likes: list[Key]) -> tuple[Prepared, Pattern | None]:
        """A call, checked. Raises CallError."""
        for name, x in zip((*"qkv", *self._tensors, *self.spec.outputs), (*given, *outputs), strict=False):
            if not FAMILIES[type(x)].on_gpu(x):
                raise CallError(f"{name} lies on the host: a launcher takes arrays on GPU {self._target.ordinal}")
        if len(outputs) != len(self.spec.outputs):
            raise CallError(f"out holds {len(outputs)} arrays: expected {len(self.spec.outputs)}, {', '.join(self.spec.outputs)}")
        on = likes[0][3]
        if on != self._target.ordinal:
            raise CallError(f"q lies on GPU {on}: the launcher was prepared on GPU {self._target.ordinal}")
        return self._gpu.prepare(given, outputs, self._params, likes)

    def _refuse(self, tensors: Mapping[str, Any]) -> None:
        """Raises CallError for a tensor that is missing, or what is none."""
        fixed = [name for name in tensors if name in {p.name for p in self.spec.params}]
        if fixed:
            raise CallError(f"{fixed[0]} is a number that a launcher keeps: give it to prepare, {fixed[0]}={tensors[fixed[0]]!r}")
        check_names(self.spec, tensors)


def _memory(owner: Any, target: Device, nbytes: int) -> int:
    """The address of memory that is given back with its owner; it begins with a counter, which is zero."""
    from cuda.bindings import driver

    with target.aside() as stream:
        address = int(check(*driver.cuMemAlloc(nbytes)))
        check(*driver.cuMemsetD8Async(address, 0, _COUNTER_BYTES, stream))
    weakref.finalize(owner, functools.partial(_give_back, target, address)).atexit = False
    return address


def _give_back(target: Device, address: int) -> None:
    from cuda.bindings import driver

    with target.active():
        driver.cuMemFree(address)
