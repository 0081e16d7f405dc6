"""Compiles a spec to something that is called on arrays."""

import os
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal

import numpy as np

from flashgen import arch as arches
from flashgen.arch import Arch
from flashgen.dtypes import by_name
from flashgen.errors import BackendError, CallError, SpecError, did_you_mean
from flashgen.interpret import Given, interpret, interpret_backward
from flashgen.plan.geometry import Sizes
from flashgen.render import Source, render
from flashgen.runtime import arrays, autograd, device, staging
from flashgen.runtime.arguments import (
    check_arrays,
    check_backward,
    check_names,
    check_requirements,
    check_values,
    numbers,
    output_shapes,
)
from flashgen.runtime.arrays import FAMILIES, Family, Layout, liken
from flashgen.runtime.backward import GpuBackward, gradients
from flashgen.runtime.executable import Executable
from flashgen.runtime.gpu import Gpu
from flashgen.runtime.lengths import fresh
from flashgen.runtime.overlap import Apart
from flashgen.runtime.sequence_lengths import check_lengths
from flashgen.spec import Spec, load
from flashgen.spec.outputs import fill_empty

Backend = Literal["gpu", "interpreter", "emulate"]
_BACKENDS = ("gpu", "interpreter", "emulate")


def compile(
    spec: Spec | str | os.PathLike[str] | Mapping[str, Any], arch: str | None = None, backend: Backend | None = None
) -> "Attention":
    """Compiles a spec, the path of one, or a mapping with its keys, to something callable on arrays.

    >>> attn = compile({"head_dim": 64, "dtype": "float32", "mask": "causal"})
    >>> q = k = v = np.ones((1, 256, 8, 64), np.float32)
    >>> attn(q, k, v).shape
    (1, 256, 8, 64)

    `arch`: as sm_90a; by default that of the current GPU. `backend`: where NumPy arrays run; by default on the GPU, or in the interpreter
    where there is none. Raises SpecError, PlanError, CompileError, BackendError.
    """
    return Attention(_spec(spec), arch, backend)


def _spec(given: Any) -> Spec:
    """The spec of any form that `compile` takes. Raises SpecError."""
    match given:
        case Spec():
            return given
        case str() | os.PathLike():
            return load(given)
        case Mapping():
            if strange := [key for key in given if not isinstance(key, str)]:
                raise SpecError(
                    f"unknown key {strange[0]!r}", hint="keys are words: {'dtype': 'bfloat16', 'head_dim': 128, 'mask': 'causal'}"
                )
            return Spec(**given)
    raise SpecError(f"a {type(given).__name__} is no spec", hint="give a Spec, the path of a YAML file, or a mapping with its keys")


class Attention:
    """A compiled spec, callable on arrays.

    >>> o = attn(q, k, v)                                # all of NumPy, CuPy, PyTorch, JAX or DLPack; the result is of the same library
    >>> attn(q, k, v, out=o, softcap=30.0, slopes=slopes)

    Runs in the caller's stream on the arrays' device. A CUDA graph may capture a call whose like was made before, which compiled it.
    `spec`, `plan` and `source` are what it was made from.
    """

    def __init__(self, spec: Spec, arch: str | None = None, backend: Backend | None = None):
        if backend not in (None, *_BACKENDS):
            raise BackendError(f"unknown backend {backend!r}: {did_you_mean(str(backend), _BACKENDS)}")
        if backend == "gpu" and (reason := device.missing()):
            raise BackendError(reason)
        self.spec, self.backend = spec, backend
        self._tensors = tuple(t.name for t in spec.arrays)
        self._needed, self._known = frozenset(self._tensors), frozenset((*self._tensors, *(p.name for p in spec.params)))
        self.arch = arches.by_name(arch) if arch else _default_arch(backend)
        self._given = spec, arch, backend
        self._gpu = Gpu(spec, self.arch if arch else None)
        self._gpu_backward = GpuBackward(spec, self.arch if arch else None)
        self.program = self._gpu.choice.plan(self.arch)
        if self.arch.name != "host" and backend in (None, "gpu"):
            self._gpu.kernel(self.arch)

    def __reduce__(self) -> tuple[Any, ...]:
        """The spec, arch and backend as given travel when it is pickled or copied. The rest is made anew, for the machine there."""
        return type(self), self._given

    @cached_property
    def source(self) -> Source:
        """The CUDA text of the plan. Raises BackendError for the interpreter, which has none."""
        if self.arch.name == "host":
            raise BackendError("the interpreter runs the plan itself, there is no text: compile(spec, arch='sm_90a') has one")
        return render(self.program)

    @property
    def kernels(self) -> tuple[Executable, ...]:
        """The kernels compiled so far, the first for the plan itself."""
        return tuple(self._gpu.kernels.values())

    def explain(self) -> str:
        """The plan and its reasons, what was compiled, and why some calls did not run the plan's kernel."""
        kernel = self.program.attention
        runs = f"{kernel.workers.warps} warps, {kernel.pipeline.stages_text}, " if self.program.launched else ""
        shape = f"tile {kernel.tile.text}, {runs}plan {self.program.digest}"
        lines = [f"{self.spec.name} on {self.arch.name}: {self.program.skeleton}, {shape}"]
        lines += [f"  {field}: {reason}" for field, reason in self.program.decision.reasons]
        for made in (*self.kernels, *self._gpu_backward.kernels.values()):
            binary, shared = made.binary, made.program.main.smem.bytes
            report = f"{binary.registers} registers, {binary.spill_bytes} bytes spilled, {shared} bytes of shared memory"
            lines.append(f"  compiled: {made.program.skeleton} for {made.source.arch} by {binary.compiler}, {report}")
        return "\n".join([*lines, *(f"  calls: {reason}" for reason in self._gpu.choice.reasons)])

    def __call__(self, q: Any, k: Any, v: Any, *, out: Any = None, check: bool = False, **values: Any) -> Any:
        """o, or what the spec's outputs say, as (o, lse).

        q: [B, Sq, Hq, Dqk], k: [B, Sk, Hk, Dqk], v: [B, Sk, Hk, Dv], o: [B, Sq, Hq, Dv], S and H swapped for layout bhsd; lse, max and
        entropy: [B, Hq, Sq], max_logit: [Hq], float32, natural log. For layout thd q: [total_q, Hq, Dqk], k, v: [total_k, Hk, D], lse:
        [Hq, total_q]. A row without keys has o = 0, lse = max = -inf and entropy = 0. With a sink, the entropy is -sum p log p over the
        keys alone, whose p sum up to less than 1. `out`: written to and returned. `values`: params and tensors of the spec and lengths of
        sequences, int32, by name. `check`: lengths are looked at first, which waits for the device. Raises CallError when the arguments do
        not fit, PlanError, CompileError, BackendError. Tensors of PyTorch that require gradients get them, where the spec has
        `backward: true`.
        """
        if self.spec.backward and autograd.wanted(q, k, v, *values.values()):
            if out is not None:
                raise CallError("out is given, and PyTorch differentiates the call: leave out out, or call under torch.no_grad()")
            return autograd.apply(self, (q, k, v), values)
        if (values or self._tensors) and not self._needed <= values.keys() <= self._known:
            check_names(self.spec, values)
        given = (arrays.adopt(q, "q"), arrays.adopt(k, "k"), arrays.adopt(v, "v"))
        if self._tensors:
            given += tuple([arrays.adopt(values.pop(name), name) for name in self._tensors])
        if check and self.spec.geometry.lengths:
            self._check_lengths(given)
        params = numbers(self.spec, values) if values else {}
        provided = () if out is None else self._provided(out)
        if not FAMILIES[type(given[0])].on_gpu(given[0]):
            results = self._on_host(given, provided, params)
        elif self.backend is None or self.backend == "gpu":
            results = self._gpu(given, provided, params)
        else:
            raise BackendError(f"q lies on a GPU: backend {self.backend!r} takes arrays in host memory, as NumPy's")
        if given[0] is not q:
            results = tuple(arrays.give_back(x, q) for x in results)
        return results[0] if len(results) == 1 else results

    def backward(self, do: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, dlse: Any = None, **values: Any) -> tuple[Any, ...]:
        """The gradients of a loss of which o has the gradient do, and lse dlse: dq, dk, dv; then of tensors and params with grad: true.

        >>> o, lse = attn(q, k, v, softcap=30.0)
        >>> dq, dk, dv, dsoftcap = attn.backward(do, q, k, v, o, lse, softcap=30.0)

        q, k, v, o, lse and `values`: of the call that is differentiated. do: like o; dlse: like lse, or None. dq, dk and dv are like q, k
        and v; the others float32, like the array or number that they are of, tensors first, each in the order of the spec. With `softmax:
        none` there is no lse: None. A row without keys has no part in any gradient. Raises CallError when the arguments do not fit, or for
        a spec without `backward: true`; PlanError, CompileError, BackendError.
        """
        if not self.spec.backward:
            raise CallError(f"{self.spec.name} has no backward: add the line backward: true to its spec, which adds lse to its outputs")
        if (values or self._tensors) and not self._needed <= values.keys() <= self._known:
            check_names(self.spec, values)
        named = {"q": q, "k": k, "v": v, "o": o, "do": do, "lse": lse, "dlse": dlse} | {name: values[name] for name in self._tensors}
        given = {name: arrays.adopt(x, name) for name, x in named.items() if x is not None or name not in ("lse", "dlse")}
        params = check_values(self.program, numbers(self.spec, values))
        if not FAMILIES[type(given["q"])].on_gpu(given["q"]):
            results = self._gradients_on_host(given, params)
        elif self.backend is None or self.backend == "gpu":
            results = self._gpu_backward(given, params)
        else:
            raise BackendError(f"q lies on a GPU: backend {self.backend!r} takes arrays in host memory, as NumPy's")
        return results if given["q"] is q else tuple(arrays.give_back(x, q) for x in results)

    def _gradients_on_host(self, given: Mapping[str, Any], params: Mapping[str, int | float]) -> tuple[Any, ...]:
        """Gradients of arrays in host memory: on the GPU where there is one, else in the interpreter, or as `backend` says."""
        spec, family = self.spec, FAMILIES[type(given["q"])]
        layouts = {name: liken(x, name).layout for name, x in given.items()}
        sizes = check_backward(spec, layouts)
        inputs = {name: _numpy(x) for name, x in given.items()}
        if self.arch.name != "host" and self.backend in (None, "gpu") and not device.missing():
            sent = {name: arrays.cupy().asarray(x) for name, x in inputs.items()}
            return tuple(family.from_numpy(x.get()) for x in self._gpu_backward(sent, params))
        made = gradients(spec, layouts)
        if not sizes.batch * sizes.q_len:
            return tuple(family.from_numpy(np.zeros(shape, by_name(dtype).numpy)) for shape, dtype in made.values())
        taken = Given(**{name: x for name, x in inputs.items() if name not in self._tensors})
        values = {**params, **{name: inputs[name] for name in self._tensors}}
        chosen = self._gpu_backward.serving(self.arch, {**layouts, **fresh(made, None)})
        check_requirements(chosen, params)
        if self.backend == "emulate":
            from flashgen.emulate import emulate_backward

            found: Mapping[str, Any] = emulate_backward(chosen, render(chosen), taken, values)
        else:
            found = interpret_backward(chosen, taken, values)
        names = ("dq", "dk", "dv", *(one.name for one in spec.with_grad))
        return tuple(family.from_numpy(np.asarray(found[name])) for name in names)

    def _check_lengths(self, given: tuple[Any, ...]) -> None:
        spec = self.spec
        layouts = {name: liken(x, name).layout for name, x in zip(("q", "k", "v", *self._tensors), given, strict=True)}
        sizes = check_arrays(spec, layouts)
        lengths = {name: _numpy(given[3 + self._tensors.index(name)]) for name, _ in spec.geometry.lengths}
        check_lengths(spec, sizes, lengths)

    def _provided(self, out: Any) -> tuple[Any, ...]:
        """The outputs that the caller gives."""
        names = self.spec.outputs
        parts = tuple(out) if isinstance(out, (tuple, list)) else (out,)
        if len(parts) != len(names):
            raise CallError(f"out holds {len(parts)} arrays: expected {len(names)}, {', '.join(names)}")
        for i, part in enumerate(parts):
            if FAMILIES[type(part)] is None:
                what = f"out is a {type(part).__name__} for {names[i]}"
                raise CallError(f"{what}: expected a NumPy, CuPy or PyTorch array, which can be written to")
            if isinstance(part, np.ndarray) and not part.flags.writeable:
                raise CallError(f"out is read-only for {names[i]}: expected an array that can be written to, as {names[i]}.copy()")
        return parts

    def _on_host(self, given: tuple[Any, ...], out: tuple[Any, ...], given_params: Mapping[str, int | float]) -> tuple[Any, ...]:
        """Arrays in host memory: on the GPU where there is one, else in the interpreter, or as `backend` says."""
        spec = self.spec
        inputs = dict(zip(("q", "k", "v", *(t.name for t in spec.arrays)), given, strict=True))
        outputs = dict(zip(spec.outputs, out, strict=True)) if out else {}
        arrays_of_call = inputs | outputs
        layouts = {name: liken(x, name).layout for name, x in arrays_of_call.items()}
        sizes = check_arrays(spec, layouts)
        Apart(layouts, tuple(outputs)).check([FAMILIES[type(x)].locate(x)[0] for x in arrays_of_call.values()])
        params = check_values(self.program, given_params)
        family: Family = FAMILIES[type(given[0])]
        shapes = output_shapes(spec, sizes)
        written = {
            name: _numpy(outputs[name]) if out else np.empty(shape, spec.output_element(name).numpy) for name, shape in shapes.items()
        }
        self._write(sizes, layouts, {name: _numpy(x) for name, x in inputs.items()}, written, params)
        return out or tuple(map(family.from_numpy, written.values()))

    def _write(
        self,
        sizes: Sizes,
        layouts: Mapping[str, Layout],
        inputs: Mapping[str, np.ndarray[Any, Any]],
        outputs: Mapping[str, np.ndarray[Any, Any]],
        params: Mapping[str, int | float],
    ) -> None:
        q, k, v = (inputs[name] for name in "qkv")
        values = {**params, **{t.name: inputs[t.name] for t in self.spec.arrays}}
        if not sizes.batch * sizes.q_len:
            fill_empty(outputs)
            return
        if self.arch.name != "host" and self.backend in (None, "gpu") and not device.missing():
            staging.attend(self._gpu, self.program.expressions, sizes, inputs, outputs, params)
            return
        chosen = self._gpu.choice.serving(self.arch, layouts)
        if self.backend == "emulate":
            from flashgen.emulate import emulate

            made: Mapping[str, Any] = emulate(
                chosen, render(chosen), q, k, v, values, blocks=8
            )  # as many as the emulator spreads over cores
        else:
            made = interpret(chosen, q, k, v, values)
        for name, x in outputs.items():
            x[...] = made[name]


def _numpy(x: Any) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = FAMILIES[type(x)].to_numpy(x)
    return found


def _default_arch(backend: Backend | None) -> Arch:
    if backend == "emulate":
        return arches.by_name(arches.DEFAULT)
    if backend != "gpu" and (backend == "interpreter" or device.missing()):
        return arches.by_name("host")
    return device.current().arch
