"""A compiled kernel on the GPUs of this machine: loaded once a device, launched from a record that is filled once a shape."""

import functools
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from flashgen.errors import BackendError
from flashgen.plan.geometry import Sizes, block_count
from flashgen.plan.kernel import Kernel
from flashgen.plan.params import record_dtype, scalars, steps
from flashgen.plan.program import Argument, Program
from flashgen.render import Source
from flashgen.runtime import dealing, tma
from flashgen.runtime.arguments import rows_first
from flashgen.runtime.arrays import Layout
from flashgen.runtime.device import Device, captured, check, device
from flashgen.runtime.nvrtc import Binary

ROLES = ("q", "k", "v", "o", "o_raw")  # arrays [B, S, H, D]
OF_ROLES = ("do", "dq", "dk", "dv")  # and their gradients
_POINTER, _INT = struct.Struct("<Q"), struct.Struct("<i")
BROUGHT = ("counter", "halves")  # by a launch itself, after the arrays


@dataclass(frozen=True)
class Executable:
    """A plan, its text, and its cubin; loaded when first launched on a device."""

    program: Program
    source: Source
    binary: Binary
    _loaded: dict[int, tuple[Any, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def on(self, target: Device) -> tuple[Any, ...]:
        """The CUfunctions on a device, in the order of a launch. Raises BackendError when the device cannot run the cubin."""
        if target.ordinal not in self._loaded:
            self._loaded[target.ordinal] = _load(self, target)
        return self._loaded[target.ordinal]

    def prepare(
        self, layouts: Mapping[str, Layout], values: Mapping[str, int | float], sizes: Sizes, counter: int | None = None
    ) -> "Launch":
        """A launch on arrays of these layouts; `values` holds the params by name. Nothing is empty. `counter`: the address of one that no
        launch beside this one has; None: each stream has its own.

        `layouts`: q, k, v, o in the order of the spec, outputs, tensors as arguments, scratch; all on one GPU.
        """
        ordinal = layouts["q"].device
        assert ordinal is not None
        target = device(ordinal)
        by_rows = {
            name: rows_first(layout, self.program.spec.layout_of(name)) if name in ROLES + OF_ROLES else layout
            for name, layout in layouts.items()
        }
        record, addresses = fill(self.program, by_rows, scalars(self.program, sizes, values))
        grids = [block_count(kernel, sizes, target.multiprocessors) for kernel in self.program.kernels]
        return Launch(self.on(target), target, record, addresses, grids, self.program, counter)


class Write(NamedTuple):
    """A writer of an address into the record."""

    at: int  # its place among the addresses, which have the order of the layouts, then what is BROUGHT
    into: Callable[[memoryview, int], None]
    map: tma.Map | None = None  # that it goes through


def fill(program: Program, layouts: Mapping[str, Layout], known: Mapping[str, int | float]) -> tuple[np.ndarray[Any, Any], list[Write]]:
    """The record of Params with all but addresses filled in, and the writers of those."""
    dtype = record_dtype(program.arguments)
    record = np.zeros((), dtype)
    places, writes = [*layouts, *BROUGHT], []
    for argument in program.arguments:
        assert dtype.fields is not None
        offset = dtype.fields[argument.name][1]
        if argument.kind == "scalar":
            record[argument.name] = known[argument.of]
        elif argument.kind == "extent":
            record[argument.name] = layouts[argument.of].shape[argument.rank]
        elif argument.kind == "strides":
            batch, row, head, column = layouts[argument.of].strides
            record[argument.name] = (batch, head, row, column)
        else:
            layout, source = layouts.get(argument.of), argument.of
            if argument.kind in ("array", "sums"):
                assert layout
                record[argument.name]["strides"] = steps(layout.shape, layout.strides)
                source = "counter" if 0 in layout.shape else source  # what is read in place of nothing matters to nobody
            writes.append(_write(argument, offset, places.index(source), layout, known))
    return record, writes


def put_strides(record: memoryview, argument: Argument, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    """Writes the strides of an array, or its extent, into a record, at the offset of its member."""
    if argument.kind == "extent":
        _INT.pack_into(record, offset, shape[argument.rank])
    elif argument.kind in ("array", "sums"):  # after the pointer
        _strides_of(len(strides))(record, offset + _POINTER.size, *steps(shape, strides))
    else:
        batch, row, head, column = strides
        _strides_of(4)(record, offset, batch, head, row, column)


@functools.cache
def _strides_of(rank: int) -> Callable[..., None]:
    return struct.Struct(f"<{rank}q").pack_into


def _write(argument: Argument, offset: int, at: int, layout: Layout | None, known: Mapping[str, int | float]) -> Write:
    if argument.kind == "tensor_map":
        assert layout
        of_group = (int(known["group"]),) if argument.grouped else ()
        encode, end = tma.Map(layout, argument.box, *of_group), offset + 128

        def write_map(record: memoryview, address: int) -> None:
            record[offset:end] = encode(address)

        return Write(at, write_map, encode)

    def write_pointer(record: memoryview, address: int) -> None:
        _POINTER.pack_into(record, offset, address)

    return Write(at, write_pointer)


class Launch:
    """A launch that lacks only addresses and a stream. Threads may share it, unless its record is changed.

    `record`: what kernels are given; `written`: the addresses that it holds, -1 where one has to be written again.
    """

    def __init__(
        self,
        functions: Sequence[Any],
        target: Device,
        record: np.ndarray[Any, Any],
        writes: Sequence[Write],
        grids: Sequence[int],
        program: Program,
        counter: int | None = None,
    ):
        from cuda.bindings import driver

        self._target, self._context, self.writes = target, target.handle, tuple(writes)
        self._driver, self._lock = driver, threading.Lock()
        self._stream, self._counter, self._shared = -1, counter or 0, counter is None
        self._halves = dealing.halves(target) if any(argument.of == "halves" for argument in program.arguments) else 0
        self.written = [-1] * (1 + max(write.at for write in writes))  # addresses that the record holds
        room = np.zeros(record.nbytes + 64, np.uint8)  # the driver's own tensor maps are aligned to 64 bytes
        start = -room.ctypes.data % 64
        aligned = room[start : start + record.nbytes]
        aligned[:] = np.frombuffer(record.tobytes(), np.uint8)
        self.record = memoryview(aligned)  # type: ignore[arg-type]  # NumPy's stubs know no buffers before Python 3.12
        self._arguments = np.array([aligned.ctypes.data], np.uint64)
        self._arguments_at = int(self._arguments.ctypes.data)
        self._kernels = []
        for function, kernel, blocks in zip(functions, program.kernels, grids, strict=True):
            config = driver.CUlaunchConfig()
            config.gridDimX, config.gridDimY, config.gridDimZ = blocks, 1, 1
            config.blockDimX, config.blockDimY, config.blockDimZ = kernel.grid.threads, 1, 1
            config.sharedMemBytes = kernel.smem.bytes
            config.attrs = [_early()] if kernel.grid.early else []
            config.numAttrs = len(config.attrs)
            self._kernels.append((config, function))

    def __call__(self, addresses: Sequence[int], stream: int) -> None:
        """Launches on the arrays at these addresses, in the order of the layouts, in a stream of the device. Raises BackendError."""
        with self._lock:
            if int(self._driver.cuCtxGetCurrent()[1]) == self._context:
                self._run(addresses, stream)
            else:  # as in a thread that has not called the driver before: tensor maps too want a context
                with self._target.active():
                    self._run(addresses, stream)

    def _run(self, addresses: Sequence[int], stream: int) -> None:
        if stream != self._stream or (self._shared and captured(stream)):
            self._follow(stream)
        wanted = [*addresses, self._counter, self._halves]
        if wanted != self.written:
            self._write(wanted)
        self._launch()

    def resize(self, grids: Sequence[int]) -> None:
        """Launches from now on have so many blocks; a kernel of none is passed."""
        for (config, _), blocks in zip(self._kernels, grids, strict=True):
            config.gridDimX = blocks

    def _follow(self, stream: int) -> None:
        """Launches from now on are in this stream."""
        kept = stream
        if self._shared:  # nobody knows beside what a graph will run, so each call in one has a counter of its own
            alone = captured(stream)
            self._counter = dealing.zeros(self._target) if alone else dealing.counter(self._target, stream)
            kept = -1 if alone or stream == dealing.PER_THREAD else stream
        for config, _ in self._kernels:
            config.hStream = self._driver.CUstream(stream)
        self._stream = kept

    def _write(self, wanted: list[int]) -> None:
        """Patches the addresses that changed."""
        written, self.written = self.written, [-1] * len(wanted)  # should the driver refuse a tensor map
        for at, into, _ in self.writes:
            if wanted[at] != written[at]:
                into(self.record, wanted[at])
        self.written = wanted

    def _launch(self) -> None:
        for config, function in self._kernels:
            if not config.gridDimX:  # as of shares to merge, where there is one
                continue
            (status,) = self._driver.cuLaunchKernelEx(config, function, self._arguments_at, 0)
            if status:
                check(status)


@functools.cache
def _early() -> Any:
    """The attribute of a kernel that starts early."""
    from cuda.bindings import driver

    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    return attribute


def _load(executable: Executable, target: Device) -> tuple[Any, ...]:
    from cuda.bindings import driver

    with target.active():
        status, module = driver.cuModuleLoadData(executable.binary.cubin)
        if int(status):
            raise BackendError(f"{target.name} ({target.arch.name}) does not load a cubin for {executable.source.arch}: {status.name}")
        return tuple(_function(executable, part, module, target) for part in executable.program.kernels)


def _function(executable: Executable, part: Kernel, module: Any, target: Device) -> Any:
    from cuda.bindings import driver

    function = check(*driver.cuModuleGetFunction(module, part.entry.encode()))
    limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    (status,) = driver.cuFuncSetAttribute(function, limit, part.smem.bytes)
    if int(status):
        wanted = part.smem.bytes + executable.binary.shared_bytes
        what = f"{part.entry} of {executable.source.name} takes {wanted} bytes of shared memory"
        raise BackendError(f"{what}, more than {target.name} gives a block ({status.name})")
    return function
