"""Compiles a spec to something that is called on arrays."""

import os
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from flashgen import arch as arches
from flashgen.arch import Arch
from flashgen.errors import BackendError, CallError, SpecError, did_you_mean
from flashgen.on_host import Backend, OnHost, as_numpy, provided
from flashgen.render import Source, render
from flashgen.runtime import arrays, autograd, device
from flashgen.runtime.arguments import check_arrays, check_names, check_values, checked_bounds, given_name, numbers
from flashgen.runtime.arrays import FAMILIES, liken
from flashgen.runtime.executable import Executable
from flashgen.runtime.gpu import Gpu
from flashgen.runtime.habits import unknown
from flashgen.runtime.launcher import Launcher
from flashgen.runtime.sequence_lengths import check_lengths
from flashgen.spec import Spec, load
from flashgen.spec.shipped import find
from flashgen.spec.words import gradient

if TYPE_CHECKING:
    from flashgen.runtime.backward import GpuBackward

_BACKENDS = ("gpu", "interpreter", "emulate")


def compile(
    spec: Spec | str | os.PathLike[str] | Mapping[str, Any], arch: str | None = None, backend: Backend | None = None
) -> "Attention":
    """Compiles a spec, its path, the name of one that ships, as "causal", or a mapping with its keys, to something callable on arrays.

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
        case str():
            return find(given)
        case os.PathLike():
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
        self.arch = arches.by_name(arch) if arch else default_arch(backend)
        self._given = spec, arch, backend
        self._gpu = Gpu(spec, self.arch if arch else None)
        self._gpu_backward = _backward(spec, self.arch, pinned=bool(arch))
        self.program = self._gpu.choice.plan(self.arch)
        self._host = OnHost(self.program, self.arch, backend, self._gpu)
        if not self.arch.on_cpu and backend in (None, "gpu"):
            self._gpu.kernel(self.arch)

    def __reduce__(self) -> tuple[Any, ...]:
        """The spec, arch and backend as given travel when it is pickled or copied. The rest is made anew, for the machine there."""
        return type(self), self._given

    @cached_property
    def source(self) -> Source:
        """The CUDA text of the plan. Raises BackendError for the interpreter, which has none."""
        if self.arch.on_cpu:
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
        for made in (*self.kernels, *(self._gpu_backward.kernels.values() if self._gpu_backward else ())):
            binary, shared = made.binary, made.program.main.smem.bytes
            report = f"{binary.registers} registers, {binary.spill_bytes} bytes spilled, {shared} bytes of shared memory"
            lines.append(f"  compiled: {made.program.skeleton} for {made.source.arch} by {binary.compiler}, {report}")
        return "\n".join([*lines, *(f"  calls: {reason}" for reason in self._gpu.choice.reasons)])

    def __call__(self, q: Any, k: Any, v: Any, *, out: Any = None, check: bool = False, **values: Any) -> Any:
        """o, or what the spec's outputs say, as (o, lse).

        q: [B, Sq, Hq, Dqk], k: [B, Sk, Hk, Dqk], v: [B, Sk, Hk, Dv], o: [B, Sq, Hq, Dv], S and H swapped for layout bhsd; lse, max and
        entropy: [B, Hq, Sq], max_logit: [Hq], float32, natural log; o_raw: like o. For layout thd q: [total_q, Hq, Dqk], k, v: [total_k,
        Hk, D], lse: [Hq, total_q]. A row without keys has o = 0, lse = max = -inf and entropy = 0. With a sink, the entropy is -sum p log p
        over the keys alone, whose p sum up to less than 1. `out`: written to and returned. `values`: params and tensors of the spec and
        lengths of sequences, int32, by name. `check`: lengths are looked at first, which waits for the device. Raises CallError when the
        arguments do not fit, PlanError, CompileError, BackendError. Tensors of PyTorch that require gradients get them, where the spec has
        `backward: true`.
        """
        if self.spec.backward and autograd.wanted(q, k, v, *values.values()):
            return self.differentiated(q, k, v, values, out, check)
        results = self._outputs(q, k, v, values, out, check)
        return results[0] if len(results) == 1 else results

    def differentiated(self, q: Any, k: Any, v: Any, values: Mapping[str, Any], out: Any = None, check: bool = False) -> Any:
        """The results of a call on tensors of PyTorch as a node of its graph. Raises CallError."""
        if out is not None:
            raise CallError("out is given, and PyTorch differentiates the call: leave out out, or call under torch.no_grad()")
        return autograd.apply(self, partial(self._outputs, check=True) if check else self._outputs, (q, k, v), values)

    def _outputs(self, q: Any, k: Any, v: Any, values: dict[str, Any], out: Any = None, check: bool = False) -> tuple[Any, ...]:
        """The outputs of a call that nobody differentiates. Takes `values`, of which none stay."""
        if (values or self._tensors) and not self._needed <= values.keys() <= self._known:
            check_names(self.spec, values)
        family = FAMILIES[type(q)]
        if family and type(q) is type(k) is type(v):
            given: tuple[Any, ...] = (q, k, v)
        else:
            given = (arrays.adopt(q, "q"), arrays.adopt(k, "k"), arrays.adopt(v, "v"))
            family = FAMILIES[type(given[0])]
        if self._tensors:
            given += tuple([arrays.adopt(values.pop(name), name) for name in self._tensors])
        if check and self.spec.geometry.lengths:
            self._check_lengths(given)
        params = numbers(self.spec, values) if values else {}
        written = () if out is None else provided(self.spec.outputs, out)
        if not family.on_gpu(given[0]):
            results = self._host.attend(given, written, params)
        elif self.backend is None or self.backend == "gpu":
            results = self._gpu(given, written, params)
        else:
            raise BackendError(f"q lies on a GPU: backend {self.backend!r} takes arrays in host memory, as NumPy's")
        if given[0] is not q:
            results = tuple(arrays.give_back(x, q) for x in results)
        return results

    def prepare(self, *, max_batch: int, max_q_len: int, max_kv_len: int, heads: int, kv_heads: int, **params: Any) -> Launcher:
        """A launcher for calls on the current GPU: one plan serves all lengths, its kernels are compiled and loaded, its memory is there.

        >>> run = attn.prepare(max_batch=8, max_q_len=1, max_kv_len=131072, heads=32, kv_heads=8)
        >>> run(q, k, v, out=o)

        The plan is that of the largest lengths: a launcher for decoding and one for prefills are faster than one for both. For layout thd
        `max_q_len` and `max_kv_len` are of all sequences together; with pages, `max_kv_len` is what a row of the block table may hold.
        `params`: numbers of the spec. Raises CallError, PlanError, SpecError, CompileError; BackendError where there is no GPU.
        """
        given = {"max_batch": max_batch, "max_q_len": max_q_len, "max_kv_len": max_kv_len, "heads": heads, "kv_heads": kv_heads}
        if taken := [p.name for p in self.spec.params if p.name in given]:
            raise CallError(f"{taken[0]} is a param of the spec, and prepare has an argument of that name: call the param my_{taken[0]}")
        if reason := device.missing():
            raise BackendError(reason)
        if wrong := sorted(params.keys() - {p.name for p in self.spec.params}):
            raise unknown(wrong[0], [*given, *(p.name for p in self.spec.params)])
        bounds = checked_bounds(self.spec, {name.removeprefix("max_"): count for name, count in given.items()})
        return Launcher(self._gpu, device.current(), bounds, numbers(self.spec, params))

    def bound(self, q: Any, k: Any, v: Any, out: tuple[Any, ...], **values: Any) -> Callable[[list[int], Any], None] | None:
        """The launch of a call on arrays like these that lie on a GPU, for libraries that lend their memory; None if there is no query.

        >>> launch = attn.bound(q, k, v, (o,))
        >>> launch([q.pointer, k.pointer, v.pointer, o.pointer], q)

        It takes the addresses of q, k, v, the spec's tensors in its order and the outputs, and an array that tells the stream. Raises
        CallError when the arguments do not fit, PlanError, CompileError, BackendError.
        """
        check_names(self.spec, values)
        given = (q, k, v, *[values.pop(name) for name in self._tensors])
        return self._gpu.bound(given, provided(self.spec.outputs, out), numbers(self.spec, values))

    def backward(
        self, do: Any, q: Any, k: Any, v: Any, o: Any = None, lse: Any = None, dlse: Any = None, *, out: Any = None, **values: Any
    ) -> tuple[Any, ...]:
        """The gradients of a loss of which o has the gradient do, and lse dlse: dq, dk, dv; then of tensors and params with grad: true.

        >>> o, lse = attn(q, k, v, softcap=30.0)
        >>> dq, dk, dv, dsoftcap = attn.backward(do, q, k, v, o, lse, softcap=30.0)

        q, k, v, o, lse and `values`: of the call that is differentiated; where the spec has `output`, `o_raw=` of the call in place of o,
        which it cannot be told from. do: like o; dlse: like lse, or None. dq, dk and dv are like q, k and v; the others float32, like the
        array or number that they are of, tensors first, each in the order of the spec. With `softmax: none` there is no lse: None. A row
        without keys has no part in any gradient, but in those of what `output` reads. `out`: contiguous arrays, written to and returned.
        Raises CallError when the arguments do not fit, or for a spec without `backward: true`; PlanError, CompileError, BackendError.
        """
        if not self._gpu_backward:
            raise CallError(f"{self.spec.name} has no backward: add the line backward: true to its spec, which adds lse to its outputs")
        kept = self._kept(o, values)
        if (values or self._tensors) and not self._needed <= values.keys() <= self._known:
            check_names(self.spec, values)
        named = {"q": q, "k": k, "v": v, "o": kept, "do": do, "lse": lse, "dlse": dlse} | {name: values[name] for name in self._tensors}
        there = {name: x for name, x in named.items() if x is not None or name not in ("lse", "dlse")}
        given = {name: arrays.adopt(x, given_name(self.spec, name)) for name, x in there.items()}
        params = check_values(self.program, numbers(self.spec, values))
        written = () if out is None else provided(("dq", "dk", "dv", *(gradient(one.name) for one in self.spec.with_grad)), out)
        if not FAMILIES[type(given["q"])].on_gpu(given["q"]):
            results = self._host.differentiate(self._gpu_backward, given, written, params)
        elif self.backend is None or self.backend == "gpu":
            results = self._gpu_backward(given, params, written)
        else:
            raise BackendError(f"q lies on a GPU: backend {self.backend!r} takes arrays in host memory, as NumPy's")
        return results if given["q"] is q else tuple(arrays.give_back(x, q) for x in results)

    def _kept(self, o: Any, values: dict[str, Any]) -> Any:
        """Takes what the attention itself gave by its name, as o or from `values`. Raises CallError for the other name."""
        if self.spec.kept == "o":
            if o is None:
                raise CallError("o is None: pass the o of the call that is differentiated")
            return o
        if o is not None or values.get("o_raw") is None:
            what = "o is given" if o is not None else "o_raw is missing"
            raise CallError(f"{what}, and the spec has output: pass o_raw=, which the call returned beside o, and no o")
        return values.pop("o_raw")

    def _check_lengths(self, given: tuple[Any, ...]) -> None:
        spec = self.spec
        layouts = {name: liken(x, name).layout for name, x in zip(("q", "k", "v", *self._tensors), given, strict=True)}
        sizes = check_arrays(spec, layouts)
        lengths = {name: as_numpy(given[3 + self._tensors.index(name)]) for name, _ in spec.geometry.lengths}
        check_lengths(spec, sizes, lengths)


def _backward(spec: Spec, arch: Arch, pinned: bool) -> "GpuBackward | None":
    """The backward of a spec that has one; `pinned`: for this architecture alone. Raises PlanError where this one has no kernel for it."""
    if not spec.backward:
        return None
    from flashgen.plan.backward import check_differentiable  # which no forward needs
    from flashgen.runtime.backward import GpuBackward

    check_differentiable(spec, arch)
    return GpuBackward(spec, arch if pinned else None)


def default_arch(backend: Backend | None = None) -> Arch:
    """The architecture of a spec that is compiled for none: that of the current GPU, or the CPU where there is none."""
    if backend == "emulate":
        return arches.by_name(arches.DEFAULT)
    if backend != "gpu" and (backend == "interpreter" or device.missing()):
        return arches.by_name("host")
    return device.current().arch
