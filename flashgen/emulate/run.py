"""Runs a plan's kernels on NumPy arrays: the record is filled as the runtime fills it, and the outputs are watched."""

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashgen.dtypes import by_name
from flashgen.emulate.machine import HostKernel
from flashgen.emulate.memory import Watched, fence, fenced
from flashgen.emulate.report import EmulationFault
from flashgen.emulate.tensor_map import tensor_map
from flashgen.plan.geometry import Sizes, block_count, row_words, shape, sizes_of
from flashgen.plan.params import record_dtype, scalars, steps
from flashgen.plan.program import Argument, Program
from flashgen.render import Source
from flashgen.spec.outputs import OUTPUTS, ROW, fill_empty

Array = NDArray[Any]

_AXES: dict[tuple[str, ...] | None, str] = {
    None: "batch, row, head, column",
    ROW: "batch, head, row",
    ("hq",): "head",
}  # of outputs, for people
GUARD = 4096  # bytes before an output that a kernel must not touch
POISON: dict[int, Any] = {
    2: np.uint16(0x7DA5),
    4: np.uint32(0x7FA5A5A5),
}  # by element size: signalling NaNs, which no instruction makes


def emulate(
    program: Program,
    source: Source,
    q: Array,
    k: Array,
    v: Array,
    values: Mapping[str, Any] = MappingProxyType({}),
    *,
    seed: int = 0,
    checks: bool = True,
    blocks: int = 3,
) -> "Emulated":
    """Runs the emitted kernels on the CPU: the outputs of the spec, o [B, Sq, Hq, Dv], the others float32, natural log.

    >>> emulate(program, render(program), q, k, v, {"softcap": 30.0}, seed=7)["o"]

    q: [B, Sq, Hq, Dqk], k: [B, Sk, Hk, Dqk], v: [B, Sk, Hk, Dv] for layout bshd, S and H swapped for bhsd. `values` holds tensors of the
    spec, and params that differ from their defaults. `seed` orders everything that a GPU may order freely; `checks=False` looks for no
    races and is an eighth faster. A persistent kernel runs with so many `blocks`. As in the runtime, nothing is launched without queries or
    without sequences. Raises EmulationFault for what the kernel does wrong, BackendError for what cannot run here.
    """
    order_of = program.spec.order_of
    lengths = {name: np.shape(values[name]) for name in program.spec.sizing}
    sizes = sizes_of(program.spec, order_of("q").by_rows(q).shape, order_of("k").by_rows(k).shape, lengths)
    o_memory, o = guarded((*q.shape[:-1], v.shape[-1]), program.out_dtype.numpy)
    others = _beside_o(program, sizes, o.shape)
    outputs = Emulated({"o": o, **{name: x for name, (_, x) in others.items()}})
    if not sizes.batch * sizes.q_len:
        fill_empty(outputs)
        return outputs
    params = {p.name: values.get(p.name, p.default) for p in program.spec.params}
    tensors = {t.argument: fence(some(np.asarray(values[t.name]))) for t in program.spec.arrays}
    rows = {name: order_of(name).by_rows(fence(x)) for name, x in (("q", q), ("k", k), ("v", v))} | _by_rows(program, outputs)
    if not rows["k"].size:  # nothing is read through k and v, but a tensor map wants an address
        rows |= {"k": rows["q"], "v": rows["q"]}
    counter, halves = np.zeros(3, np.int32), np.arange(256, dtype=np.int32) % 2
    scratch = {s.name: unset(shape(s, sizes), by_name(s.dtype).numpy) for s in program.scratch}
    record = fill(program, {**outputs, **rows, "counter": counter, "halves": halves, **tensors, **scratch}, scalars(program, sizes, params))
    inputs = tensors | ({name: rows[name] for name in ("q", "k", "v")} if k.size else {"q": rows["q"]})
    watched = {name: Watched(x, "read") for name, x in inputs.items()}
    watched |= {"counter": Watched(counter), "halves": Watched(halves, "constant")}
    watched |= {name: Watched(x, "fill") for name, x in (*outputs.items(), *scratch.items())}
    launch(program, source, sizes, record, watched, seed, checks, blocks)
    outputs.block_m = program.main.tile.block_m if program.tiled else 0
    outputs.remember(compiled(source.text, program.kernels[0].entry, f"{source.name}.cu"), watched)
    judge(rows["o"], o_memory, "o [batch, row, head, column]")
    for name, (memory, x) in others.items():
        judge(rows.get(name, x), memory, f"{name} [{_AXES[OUTPUTS[name].axes]}]")
    judge_counter(counter)
    return outputs


def _by_rows(program: Program, outputs: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs that are like o, as [B, S, H, D]."""
    return {name: program.spec.order_of("o").by_rows(x) for name, x in outputs.items() if OUTPUTS[name].like_o}


def _beside_o(program: Program, sizes: Sizes, o: tuple[int, ...]) -> dict[str, tuple[Array, Array]]:
    """The outputs of a call besides o, by name: their memory, and they themselves. `o`: the shape of o."""
    spec = program.spec
    words = row_words(spec, sizes)
    shapes = {name: o if OUTPUTS[name].like_o else OUTPUTS[name].shape(words) for name in spec.outputs if name != "o"}
    return {name: guarded(shape, spec.output_element(name).numpy) for name, shape in shapes.items()}


class Emulated(dict[str, Array]):
    """The outputs of a call by name, and who wrote each element; `block_m`: the rows of a query tile, 0 where nothing tiles them."""

    block_m = 0

    def remember(self, kernel: HostKernel, watched: Mapping[str, Watched]) -> None:
        """Keeps the kernel that ran and the arrays that were watched, for `writer`."""
        self._kernel, self._watched = kernel, watched

    def writer(self, name: str, index: tuple[int, ...]) -> str:
        """The thread that wrote an element of an output last, and its line of the kernel; empty if nobody noted it.

        `index` is of the output as it was returned.
        """
        if not hasattr(self, "_kernel"):  # without queries nothing was launched
            return ""
        x = self[name]
        at = x.ctypes.data + sum(i * stride for i, stride in zip(index, x.strides, strict=True))
        return self._kernel.told(self._watched[name].last_write(at))


def launch(
    program: Program, source: Source, sizes: Sizes, record: Array, watched: Mapping[str, Watched], seed: int, checks: bool, blocks: int
) -> None:
    """Runs the kernels one after another."""
    for ordinal, part in enumerate(program.kernels, 1):
        if not (size := block_count(part, sizes, blocks)):
            continue
        kernel = compiled(source.text, part.entry, f"{source.name}.cu")
        kernel.launch(
            *(size, part.grid.threads, part.smem.bytes, record, seed, checks),
            *(part.smem.regions, watched, ordinal, program.arch, part.grid.early, part.grid.cluster),
        )


@functools.lru_cache(64)
def compiled(text: str, entry: str, name: str) -> HostKernel:
    """The kernel of a text, kept: sources come again with other arrays and seeds."""
    return HostKernel(text, entry, name)


def fill(program: Program, arrays: Mapping[str, Array | None], known: Mapping[str, int | float]) -> Array:
    """The kernel's Params. `arrays`: q, k, v, o as [B, S, H, D], the others as they are; `known`: scalars by what they are `of`."""
    record, group = np.zeros((), record_dtype(program.arguments)), int(known["group"])
    for argument in program.arguments:
        record[argument.name] = known[argument.of] if argument.kind == "scalar" else member(argument, arrays[argument.of], group)
    return record


def member(argument: Argument, x: Array | None, group: int) -> Any:
    """An argument of a kernel as a member of its record: a pointer, a number or a tensor map; 0 for no array. `group`: heads of one."""
    if x is None:  # a null pointer
        return 0
    strides = tuple(s // x.itemsize for s in x.strides)
    match argument.kind:
        case "tensor_map":
            columns, rows = argument.box
            if argument.grouped:
                return tensor_map(some(x), (1, rows // group, group, columns), swizzle=columns * x.itemsize)
            return tensor_map(some(x).swapaxes(1, 2), (1, 1, rows, columns), swizzle=columns * x.itemsize)
        case "strides":
            batch, row, head, column = strides
            return (batch, head, row, column)
        case "extent":
            return x.shape[argument.rank]
        case "array" | "sums":
            return (x.ctypes.data, steps(x.shape, strides))
    return x.ctypes.data


def some(x: Array) -> Array:
    """The array, or an element in place of none: a kernel may read it, and what it holds matters to nobody."""
    return x if x.size else np.zeros((1,) * x.ndim, x.dtype)


def guarded(shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """The memory of an output, full of poison, and the output at its end, 16-byte aligned; behind it there is none."""
    poison, guard = POISON[dtype.itemsize], GUARD // dtype.itemsize
    memory = fenced(int(np.prod(shape)) * dtype.itemsize + GUARD).view(poison.dtype)
    memory[...] = poison
    return memory, memory[guard:].view(dtype).reshape(shape)


def unset(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Memory that nothing sensible was written to yet."""
    memory = fenced(int(np.prod(shape)) * dtype.itemsize).view(np.uint8)
    memory[...] = 0xA5
    return memory.view(dtype).reshape(shape)


def judge(x: Array, memory: Array, axes: str) -> None:
    """Raises EmulationFault where an output was not written, or something around it was."""
    poison = POISON[x.itemsize]
    missing = np.argwhere(x.view(poison.dtype) == poison)
    if len(missing):
        raise EmulationFault(
            f"{len(missing)} of {x.size} elements of the output {axes} were never written, the first at {missing[0].tolist()}\n"
            "  look at: the tiles that exist, the rows and columns a tile stores, and the tests against the lengths"
        )
    if (memory[: GUARD // x.itemsize] != poison).any():
        raise EmulationFault(f"the kernel wrote before the output {axes}\n  look at: the index of the row and the strides")


def judge_counter(counter: Array) -> None:
    """Raises EmulationFault where the last block did not leave zeros."""
    if counter.any():
        raise EmulationFault(
            f"the kernel leaves its counter at {counter.tolist()}, the next launch needs zeros\n  look at: the reset by the last block"
        )
