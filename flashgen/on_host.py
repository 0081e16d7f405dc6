"""Calls of one spec on arrays in host memory: on the GPU where there is one, else in the interpreter or the emulator."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from flashgen.arch import Arch
from flashgen.dtypes import by_name
from flashgen.errors import CallError
from flashgen.plan.geometry import Sizes
from flashgen.plan.program import Program
from flashgen.render import render
from flashgen.runtime import arrays, device, staging
from flashgen.runtime.arguments import check_arrays, check_backward, check_requirements, check_values, given_name, output_shapes
from flashgen.runtime.arrays import FAMILIES, NUMPY, Family, Layout, liken
from flashgen.runtime.gpu import Gpu
from flashgen.runtime.lengths import fresh
from flashgen.runtime.overlap import Apart
from flashgen.runtime.results import given_results, gradients
from flashgen.spec.outputs import fill_empty

if TYPE_CHECKING:
    from flashgen.runtime.backward import GpuBackward

Backend = Literal["gpu", "interpreter", "emulate"]
Arrays = Mapping[str, np.ndarray[Any, Any]]


class OnHost:
    """A compiled spec for arrays in host memory. `program`: its plan; `gpu`: the same spec on a GPU."""

    def __init__(self, program: Program, arch: Arch, backend: Backend | None, gpu: Gpu):
        self.spec, self.program, self.arch, self.backend = program.spec, program, arch, backend
        self._gpu = gpu

    def _sent(self) -> bool:
        """True if arrays are sent to a GPU."""
        return not self.arch.on_cpu and self.backend in (None, "gpu") and not device.missing()

    def attend(self, given: tuple[Any, ...], out: tuple[Any, ...], given_params: Mapping[str, int | float]) -> tuple[Any, ...]:
        """The outputs. `given`: q, k, v and the spec's tensors; `out`: the arrays to write to, or none. Raises CallError."""
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
            name: as_numpy(outputs[name]) if out else np.empty(shape, spec.output_element(name).numpy) for name, shape in shapes.items()
        }
        self._write(sizes, layouts, {name: as_numpy(x) for name, x in inputs.items()}, written, params)
        return out or tuple(map(family.from_numpy, written.values()))

    def _write(
        self, sizes: Sizes, layouts: Mapping[str, Layout], inputs: Arrays, outputs: Arrays, params: Mapping[str, int | float]
    ) -> None:
        q, k, v = (inputs[name] for name in "qkv")
        values = {**params, **{t.name: inputs[t.name] for t in self.spec.arrays}}
        if not sizes.batch * sizes.q_len:
            fill_empty(outputs)
            return
        if self._sent():
            staging.attend(self._gpu, self.program.expressions, sizes, inputs, outputs, params)
            return
        chosen = self._gpu.choice.serving(self.arch, layouts)
        if self.backend == "emulate":
            from flashgen.emulate import emulate

            made: Mapping[str, Any] = emulate(
                chosen, render(chosen), q, k, v, values, blocks=8
            )  # as many as the emulator spreads over cores
        else:
            from flashgen.interpret import interpret

            made = interpret(chosen, q, k, v, values)
        for name, x in outputs.items():
            x[...] = made[name]

    def differentiate(
        self, backward: "GpuBackward", given: Mapping[str, Any], out: tuple[Any, ...], params: Mapping[str, int | float]
    ) -> tuple[Any, ...]:
        """The gradients. `backward`: of a GPU; `given`: arrays by name; `out`: the arrays to write to, or none. Raises CallError."""
        family, layouts = FAMILIES[type(given["q"])], {name: liken(x, given_name(self.spec, name)).layout for name, x in given.items()}
        sizes = check_backward(self.spec, layouts)
        written = given_results(gradients(self.spec, layouts), out) if out else {}
        told = {given_name(self.spec, name): layout for name, layout in layouts.items()}
        Apart({**told, **written}, written).check([FAMILIES[type(x)].locate(x)[0] for x in (*given.values(), *out)])
        found = self._gradients(backward, sizes, layouts, {name: as_numpy(x) for name, x in given.items()}, params)
        for x, gradient in zip(out, found, strict=False):
            as_numpy(x)[...] = gradient
        return out or tuple(map(family.from_numpy, found))

    def _gradients(
        self, backward: "GpuBackward", sizes: Sizes, layouts: Mapping[str, Layout], inputs: Arrays, params: Mapping[str, int | float]
    ) -> tuple[np.ndarray[Any, Any], ...]:
        spec, tensors = self.spec, [t.name for t in self.spec.arrays]
        if self._sent():
            sent = {name: arrays.cupy().asarray(x) for name, x in inputs.items()}
            return tuple(x.get() for x in backward(sent, params))
        made = gradients(spec, layouts)
        if not sizes.batch * sizes.q_len:
            return tuple(np.zeros(shape, by_name(dtype).numpy) for shape, dtype in made.values())
        from flashgen.interpret import Given, interpret_backward  # where there is a GPU, none of it is loaded

        taken = Given(**{name: x for name, x in inputs.items() if name not in tensors})
        values = {**params, **{name: inputs[name] for name in tensors}}
        chosen = backward.serving(self.arch, {**layouts, **fresh(made, None)})
        check_requirements(chosen, params)
        if self.backend == "emulate":
            from flashgen.emulate import emulate_backward

            found: Mapping[str, Any] = emulate_backward(chosen, render(chosen), taken, values)
        else:
            found = interpret_backward(chosen, taken, values)
        return tuple(np.asarray(found[name]) for name in ("dq", "dk", "dv", *(one.name for one in spec.with_grad)))


def provided(names: tuple[str, ...], out: Any) -> tuple[Any, ...]:
    """The arrays that a caller gives for results of these names. Raises CallError for what cannot be written to."""
    parts = tuple(out) if isinstance(out, (tuple, list)) else (out,)
    if len(parts) != len(names):
        raise CallError(f"out holds {len(parts)} arrays: expected {len(names)}, {', '.join(names)}")
    for i, part in enumerate(parts):
        family = FAMILIES[type(part)]
        if family is None:
            what = f"out is a {type(part).__name__} for {names[i]}"
            raise CallError(f"{what}: expected a NumPy, CuPy or PyTorch array, which can be written to")
        if family is NUMPY and not part.flags.writeable:
            raise CallError(f"out is read-only for {names[i]}: expected an array that can be written to, as {names[i]}.copy()")
    return parts


def as_numpy(x: Any) -> np.ndarray[Any, Any]:
    """An array in host memory as one of NumPy."""
    found: np.ndarray[Any, Any] = FAMILIES[type(x)].to_numpy(x)
    return found
