"""A kernel on this CPU: loaded, launched, its findings raised."""

import ctypes
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from numpy.typing import NDArray

from flashgen.arch import Arch
from flashgen.emulate import build, report
from flashgen.emulate.bounds import LaunchBounds
from flashgen.emulate.memory import Watched, Write
from flashgen.emulate.report import EmulationFault
from flashgen.emulate.translate import translate
from flashgen.errors import BackendError

if TYPE_CHECKING:
    from flashgen.plan.kernel import Region

MOST_THREADS = 1024  # of a block, or a cluster
ONE_AT_A_TIME = threading.Lock()  # the machine's state is global to a library


class _Region(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("offset", ctypes.c_uint32), ("bytes", ctypes.c_uint32), ("count", ctypes.c_uint32))


class _Array(ctypes.Structure):
    _fields_ = (
        *(("name", ctypes.c_char_p), ("begin", ctypes.c_void_p), ("bytes", ctypes.c_size_t)),
        *(("shadow", ctypes.c_void_p), ("defined", ctypes.c_int), ("constant", ctypes.c_int)),
    )


class _Launch(ctypes.Structure):
    _fields_ = (
        *(("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared_bytes", ctypes.c_uint32), ("checks", ctypes.c_int)),
        *(("seed", ctypes.c_uint64), ("params", ctypes.c_void_p), ("regions", ctypes.POINTER(_Region)), ("arrays", ctypes.POINTER(_Array))),
        *(("region_count", ctypes.c_int), ("array_count", ctypes.c_int), ("cores", ctypes.c_int), ("ordinal", ctypes.c_int)),
        *(("early", ctypes.c_int), ("cluster", ctypes.c_int)),
    )


class _Report(ctypes.Structure):
    _fields_ = (
        *(("what", ctypes.c_char_p), ("hint", ctypes.c_char_p), ("place", ctypes.c_uint32), ("other", ctypes.c_uint32)),
        *(("block", ctypes.c_int), ("thread", ctypes.c_int)),
    )


class HostKernel:
    """A kernel of a self-contained CUDA text, compiled for this CPU with its others. Raises MissingTwin, CompileError, BackendError.

    >>> text = 'struct Params { int* x; }; extern "C" __global__ void f(const __grid_constant__ Params p) { atomicAdd(p.x, 2); }'
    >>> x = np.zeros(1, np.int32)
    >>> HostKernel(text, "f").launch(grid=3, block=32, shared_bytes=0, params=np.array(x.ctypes.data, np.uint64))
    >>> int(x[0])
    192
    """

    def __init__(self, text: str, entry: str = "forward", name: str = "kernel.cu"):
        self.text, self.name = text, name
        self._path = build.library(translate(text, name), name)
        self._library = ctypes.CDLL(str(self._path))
        self._library.cuda_on_host_params.restype = ctypes.c_size_t
        self._entry = int(self._library.cuda_on_host_entry(entry.encode()))
        assert self._entry >= 0, f"{name} has no kernel {entry}"
        for reporting in (self._library.cuda_on_host_launch, self._library.cuda_on_host_suspect):
            reporting.restype = ctypes.POINTER(_Report)
        self._library.cuda_on_host_bounds.restype = ctypes.POINTER(ctypes.c_uint * 2)
        self.bounds = LaunchBounds(entry, *self._library.cuda_on_host_bounds(self._entry).contents)

    def launch(
        self,
        grid: int | tuple[int, ...],
        block: int,
        shared_bytes: int,
        params: NDArray[Any],
        seed: int = 0,
        checks: bool | Literal["strict"] = True,
        regions: "Sequence[Region]" = (),
        arrays: Mapping[str, Watched] = MappingProxyType({}),
        ordinal: int = 1,
        arch: Arch | None = None,
        early: bool = False,
        cluster: int = 1,
    ) -> None:
        """Runs a grid of blocks of `block` threads; `params` is the kernel's one parameter, passed by value. Raises EmulationFault.

        Seed 0 lets asynchronous work complete as late as it can, seed 1 as early as it can, others mix. Without `checks` no races are
        looked for, only broken rules and deadlocks; "strict" ones also ask for a proxy fence between ordinary reads and a copy into the
        same bytes, as PTX has it, which many kernels that are taken for right leave out. `regions` name pieces of shared memory in
        reports. When `arrays` are given, accesses to global memory through instructions must stay inside them, and races on them are
        looked for; `ordinal` is that of the kernel among those that share them, from 1, in order. `arch` is what the text's promises to
        its compiler are held against. A kernel that starts `early`, by programmatic dependent launch, touches no array before
        griddepcontrol.wait. `cluster` neighbours along x start together and reach each other's shared memory.
        """
        self.bounds.judge(block, shared_bytes, arch)
        expected = self._library.cuda_on_host_params(self._entry)
        if params.nbytes != expected:
            raise BackendError(f"the kernel's parameter takes {expected} bytes, the record given has {params.nbytes}: their members differ")
        sizes = (*((grid,) if isinstance(grid, int) else grid), 1, 1)[:3]
        check_cluster(cluster, sizes[0], block)
        named = [_Region(r.name.encode(), r.offset, r.bytes, r.count) for r in regions]
        watched = [
            _Array(name.encode(), x.begin, x.nbytes, x.shadow.ctypes.data if x.shadow.size else None, x.use != "fill", x.use == "constant")
            for name, x in arrays.items()
        ]
        launch = _Launch(
            *(sizes, (block, 1, 1), shared_bytes, 2 if checks == "strict" else int(checks), seed, params.ctypes.data),
            *((_Region * len(named))(*named), (_Array * len(watched))(*watched), len(named), len(watched)),
            *(cores(), ordinal, early, cluster),
        )
        with ONE_AT_A_TIME:
            found = self._library.cuda_on_host_launch(self._entry, ctypes.byref(launch))
            self._raise(found, seed)
            if early and checks and not self._library.cuda_on_host_awaited():
                raise EmulationFault(
                    f"no thread of {self.bounds.kernel} waits for the kernel ahead: whoever waits for this one takes both to have ended\n"
                    "  look at: griddepcontrol.wait, in every kernel that starts early"
                )

    def _raise(self, found: Any, seed: int) -> None:
        """Raises what the last launch found, if anything; what warps did in parts before what came of it."""
        for suspect in self._suspects(seed):
            if report.of_two_lines(suspect, self._path, self.name):
                raise report.fault(suspect, self._path, self.name, self.text)
        if found:
            raise report.fault(finding_of(found.contents, seed), self._path, self.name, self.text)

    def _suspects(self, seed: int) -> Iterator[report.Finding]:
        """The actions of the last launch that came from two places, and must be one line of the text."""
        for i in count():
            if not (found := self._library.cuda_on_host_suspect(ctypes.c_size_t(i))):
                return
            yield finding_of(found.contents, seed)

    def told(self, write: Write | None) -> str:
        """The writer, and the line of the kernel: "block 0, warp 3, kernel.cu:412 in store_tile"; empty for nobody."""
        if not write:
            return ""
        place = int(self._library.cuda_on_host_place(write.place))
        unit = f"warp {write.agent}" if write.agent < MOST_THREADS // 32 else "an asynchronous unit"
        chain = report.frames_of(self._path, [place], self.name).get(place)
        return f"block {write.block}, {unit}" + (f", {self.name}:{chain[0].line} in {chain[0].function}" if chain else "")

    def bank_conflicts(self) -> int:
        """Rows of ldmatrix and stmatrix, since the last call, in the same banks as another row of their 8 x 8 matrix: a cycle lost each."""
        return int(self._library.cuda_on_host_bank_conflicts())


def check_cluster(blocks: int, along_x: int, threads: int) -> None:
    """Raises BackendError where clusters do not divide a grid, or have more threads than the emulator."""
    if blocks < 1 or along_x % blocks or (blocks > 1 and -(-threads // 128) * 128 * blocks > MOST_THREADS):
        raise BackendError(
            f"clusters of {blocks} blocks of {threads} threads, in a grid of {along_x} along x: the grid is a multiple of the cluster, "
            f"and the emulator has {MOST_THREADS} threads for the whole warpgroups of a cluster"
        )


def finding_of(found: _Report, seed: int) -> report.Finding:
    """The finding of a report that the machine wrote, for the order of events `seed`."""
    return report.Finding(
        what=found.what.decode(),
        hint=found.hint.decode(),
        place=found.place,
        other=found.other,
        block=found.block,
        thread=found.thread,
        seed=seed,
    )


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
