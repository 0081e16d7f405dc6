"""Runs a backward's kernels on NumPy arrays, its outputs watched as the forward's are."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashgen.dtypes import by_name
from flashgen.emulate.memory import Watched, fence
from flashgen.emulate.run import Emulated, compiled, fill, guarded, judge, judge_counter, launch, some, unset
from flashgen.interpret import Given
from flashgen.plan.geometry import shape, sizes_of
from flashgen.plan.kernels.exact_sums import counted
from flashgen.plan.params import scalars
from flashgen.plan.program import Program
from flashgen.render import Source
from flashgen.spec.words import gradient

Array = NDArray[Any]


def emulate_backward(
    program: Program, source: Source, given: Given, values: Mapping[str, Any] = MappingProxyType({}), *, seed: int = 0, checks: bool = True
) -> Emulated:
    """Runs the emitted kernels on the CPU: dq, dk and dv, each like the array that it is the gradient of, and by its name the gradient of
    each tensor and param that asks for one, float32.

    >>> emulate_backward(program, render(program), Given(q=q, k=k, v=v, o=o, lse=lse, do=do), seed=7)["dq"]

    `values`, `seed` and `checks` are those of `flashgen.emulate.emulate`, and so is what is raised.
    """
    by_rows = program.spec.order.by_rows
    arrays = {name: by_rows(getattr(given, name)) for name in ("q", "k", "v", "o", "do")}
    lengths = {name: np.shape(values[name]) for name in program.spec.sizing}
    sizes = sizes_of(program.spec, arrays["q"].shape, arrays["k"].shape, lengths)
    sizes = counted(program.spec, sizes, {name: np.shape(x) for name, x in values.items()})
    results = {f"d{name}": guarded(getattr(given, name).shape, program.dtype.numpy) for name in ("q", "k", "v")}
    outputs = Emulated((name, x) for name, (_, x) in results.items())
    numbers = {name: x for name in ("lse", "dlse") if (x := getattr(given, name)) is not None}
    tensors = {t.argument: some(np.asarray(values[t.name])) for t in program.spec.arrays}
    inputs = {name: fence(x) for name, x in (arrays | numbers | tensors).items() if x.size}
    scratch = {s.name: unset(shape(s, sizes), by_name(s.dtype).numpy) for s in program.scratch}
    sums = {one.name: np.zeros(np.shape(values.get(one.name, 0)), np.float32) for one in program.spec.with_grad}
    added = {gradient(name): x.reshape(x.shape or 1) for name, x in sums.items()}
    counter = np.zeros(3, np.int32)
    params = {p.name: values.get(p.name, p.default) for p in program.spec.params}
    rows = {name: by_rows(x) for name, x in outputs.items()}
    memory = {"dlse": None, **arrays, **numbers, **inputs, **rows, **scratch, **added, "counter": counter}
    if (some_rows := next((inputs[name] for name in ("q", "k") if name in inputs), None)) is None:
        outputs |= sums
        return outputs
    # Of arrays without elements nothing is used, but a tensor map wants an address.
    memory |= {name: some_rows for name in (*arrays, *rows) if not memory[name].size}
    record = fill(program, memory, scalars(program, sizes, params))
    watched = {name: Watched(x, "read") for name, x in inputs.items()}
    watched |= {name: Watched(x) for name, x in ({"counter": counter} | added).items() if x.size}
    watched |= {name: Watched(x, "fill") for name, x in (outputs | scratch).items()}
    launch(program, source, sizes, record, watched, seed, checks, 3)
    outputs.remember(compiled(source.text, program.kernels[0].entry, f"{source.name}.cu"), watched)
    for name, (around, _) in results.items():
        judge(rows[name], around, f"{name} [batch, row, head, column]")
    judge_counter(counter)
    outputs |= sums
    return outputs
