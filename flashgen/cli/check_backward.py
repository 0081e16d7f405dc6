"""The gradients of `flashgen check`: each against the float64 reference, beside standard attention's in the same dtype."""

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashgen.api import Attention
from flashgen.arch import DEFAULT, by_name
from flashgen.bench.standard_backward import UNITS, standard_backward
from flashgen.emulate import emulate_backward
from flashgen.emulate.numbers import differences, worst
from flashgen.emulate.run import Emulated
from flashgen.expr import lower
from flashgen.expr.language.nodes import INDEX_NAMES, Load, Name, walk
from flashgen.expr.meaning.reference import before_output, output_heads_first, reference
from flashgen.expr.meaning.reference_backward import backward
from flashgen.interpret import Given, interpret_backward
from flashgen.plan.backward import check_differentiable
from flashgen.plan.program import Program
from flashgen.render import render
from flashgen.runtime import arrays, device
from flashgen.runtime.arrays import liken
from flashgen.runtime.backward import GpuBackward
from flashgen.runtime.lengths import fresh
from flashgen.runtime.results import gradients
from flashgen.spec import Spec

Array = NDArray[Any]
Run = Callable[[Given, Mapping[str, Any], int], Mapping[str, Array]]  # values, seed; gradients by name

FLOOR = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-5}  # that an error may have, of the greatest of a gradient or of 1
TIMES = 3  # what standard attention errs


def runner(spec: Spec, arch: str | None, emulated: bool) -> Run:
    """The runner of a backward: emitted text under the emulator, the kernels of a GPU, or a plan in the interpreter. Raises PlanError."""
    target = by_name(arch or (DEFAULT if emulated else "host"))
    check_differentiable(spec, target)
    if not emulated and not device.missing() and not (attention := Attention(spec, arch)).arch.on_cpu:
        return _on_gpu(attention)

    def emulate(given: Given, values: Mapping[str, Any], seed: int) -> Mapping[str, Array]:
        program = serving(spec, target.name, given, values)
        return emulate_backward(program, render(program), given, values, seed=seed)

    def interpret(given: Given, values: Mapping[str, Any], seed: int) -> Mapping[str, Array]:  # noqa: ARG001
        return interpret_backward(serving(spec, target.name, given, values), given, values)

    return emulate if emulated else interpret


def serving(spec: Spec, arch: str, given: Given, values: Mapping[str, Any]) -> Program:
    """The plan of a backward that serves arrays of NumPy."""
    tensors = {t.name: values[t.name] for t in spec.arrays}
    layouts = {name: liken(x, name).layout for name, x in ({**vars(given), **tensors}).items() if x is not None}
    return _chooser(spec).serving(by_name(arch), {**layouts, **fresh(gradients(spec, layouts), None)})


@functools.lru_cache(8)
def _chooser(spec: Spec) -> GpuBackward:
    return GpuBackward(spec, None)


def _on_gpu(attention: Attention) -> Run:
    family, spec = arrays.cupy_family(), attention.spec

    def run(given: Given, values: Mapping[str, Any], seed: int) -> Mapping[str, Array]:  # noqa: ARG001
        sent = {name: None if x is None else family.from_numpy(x) for name, x in vars(given).items()}
        sent[spec.kept] = sent.pop("o")
        tensors = {t.name: family.from_numpy(values[t.name]) for t in spec.arrays}
        found = attention.backward(**sent, **{**values, **tensors})
        return dict(zip(names(spec), map(family.to_numpy, found), strict=True))

    return run


def names(spec: Spec) -> tuple[str, ...]:
    """The gradients that are judged."""
    return ("dq", "dk", "dv", *(one.name for one in spec.with_grad))


def judged(spec: Spec, data: str) -> bool:
    """True if gradients are judged on this kind of data: not where scores are of a size that hides all else."""
    parts = [part for part in (lower(spec).score, lower(spec).sink) if part is not None]
    nodes = [node for part in parts for node in walk(part)]
    integers = any(isinstance(node, Load | Name) and node.type == "int" and getattr(node, "name", "") not in INDEX_NAMES for node in nodes)
    return data != "biases" and not (data == "integers" and integers)


def errors(
    spec: Spec, run: Run, qkv: tuple[Array, Array, Array], values: Mapping[str, Any], seeds: int
) -> tuple[dict[str, float], dict[str, float], str]:
    """The greatest error of each gradient over the seeds, and what is allowed; both relative to the greatest of the gradient, or to 1. And
    what is off, in words; empty if nothing is.

    Raises EmulationFault.
    """
    q, k, v = qkv
    random = np.random.RandomState(7)
    lse, o = reference(spec, q, k, v, **values)[1], before_output(spec, q, k, v, **values)
    do = random.standard_normal(o.shape).astype(spec.out_element.numpy)
    given = Given(q=q, k=k, v=v, o=o.astype(spec.out_element.numpy), do=do)
    if spec.softmax.normalized:
        of_lse = random.standard_normal(lse.shape).astype(np.float32)
        given = Given(q=q, k=k, v=v, o=given.o, do=do, lse=lse.astype(np.float32), dlse=of_lse)
    exact = backward(spec, q, k, v, do, given.dlse, **values)
    true = {"dq": exact.q, "dk": exact.k, "dv": exact.v, **exact.values}
    usual = standard_backward(spec, given, values)
    found = [run(given, values, seed) for seed in range(seeds)]
    furthest = {name: max(_off(each[name], true[name]) for each in found) for name in names(spec)}
    usually = {name: _off(usual[name], true[name]) for name in names(spec)}
    allowed = {name: FLOOR[spec.dtype] + (TIMES * off if math.isfinite(off) else 0.0) for name, off in usually.items()}
    summed = {name: UNITS * _greatest(exact.sizes.get(name, np.zeros(()))) / _size(true[name]) for name in allowed}
    limits = {name: limit + summed[name] for name, limit in allowed.items()}
    return furthest, limits, next(filter(None, ("\n".join(_told(spec, each, true, limits)) for each in found)), "")


def _told(spec: Spec, found: Mapping[str, Array], true: Mapping[str, Array], limits: Mapping[str, float]) -> Iterator[str]:
    """Tells which elements of dq, dk and dv are off, and how; of emulated kernels also who wrote the worst."""
    for name in ("dq", "dk", "dv"):
        want = np.where(np.isfinite(true[name]), true[name], found[name].astype(np.float64))
        by_head = [output_heads_first(x, spec) for x in (found[name], want)]
        if off := differences(name, by_head[0], (by_head[1], by_head[1]), limits[name] * _size(true[name])):
            yield off
            if isinstance(found, Emulated) and (who := found.writer(name, worst(found[name], (want, want)))):
                yield f"  it was written by {who}"


def _greatest(x: Array) -> float:
    return float(np.abs(x[np.isfinite(x)]).max(initial=0))


def _size(true: Array) -> float:
    """The greatest of a gradient, or 1."""
    return max(1.0, _greatest(true))


def _off(found: Array, true: Array) -> float:
    """The greatest error, of the greatest that there is or of 1; infinite where a number is none."""
    off = np.abs(found.astype(np.float64) - true)[np.isfinite(true)]
    return math.inf if np.isnan(off).any() else float(off.max(initial=0)) / _size(true)
