"""Every rung run on the same arrays: on the GPU, or, where there is none, in the interpreter."""

import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashgen.api import Attention
from flashgen.bench import DeviceClock
from flashgen.bench import measure as timed
from flashgen.bench.results import environment
from flashgen.bench.standard import standard
from flashgen.expr.meaning.reference import reference
from flashgen.interpret import interpret
from flashgen.ladder.rungs import RUNGS, Rung
from flashgen.plan import plan
from flashgen.plan.counts import counts
from flashgen.plan.geometry import Sizes
from flashgen.runtime import arrays, device, measure

Run = Callable[[], Any]
REPETITIONS = 7  # of a timing
ROWS_CHECKED = 64  # queries of one head that are compared with float64


@dataclass(frozen=True)
class Shape:
    """The size of an attention: q, k, v [batch, length, heads, head_dim]."""

    length: int
    head_dim: int
    heads: int
    batch: int
    dtype: str

    @property
    def sizes(self) -> Sizes:
        """The sizes of its call."""
        return Sizes(batch=self.batch, q_len=self.length, kv_len=self.length, heads=self.heads, kv_heads=self.heads)

    def arrays(self) -> list[NDArray[Any]]:
        """q, k and v, normal and always the same."""
        random = np.random.default_rng(self.length)
        shape = (self.batch, self.length, self.heads, self.head_dim)
        dtype = RUNGS[0].spec(self.head_dim, self.dtype).element.numpy
        return [random.standard_normal(shape, np.float32).astype(dtype) for _ in range(3)]


@dataclass(frozen=True)
class Measured:
    """One rung at one length."""

    rung: str
    arch: str  # `host`: the interpreter
    length: int
    milliseconds: float
    memory: int  # bytes at the peak besides q, k, v, o, measured
    error: float  # the largest, against float64
    counted: dict[str, int]  # of flashgen.plan.counts; empty for array operations


@dataclass(frozen=True)
class Absent:
    """A rung that did not run at a length, and why."""

    rung: str
    length: int
    why: str


@dataclass(frozen=True)
class Climb:
    """All measurements; `machine` says of what: card, driver, versions, or that it was the interpreter."""

    machine: dict[str, Any]
    on_gpu: bool
    shape: Shape  # the longest
    rows: tuple[Measured, ...]
    absent: tuple[Absent, ...] = ()

    def of(self, length: int) -> dict[str, Measured]:
        """The measurements at a length, by rung."""
        return {row.rung: row for row in self.rows if row.length == length}

    def speedup(self, row: Measured) -> float | None:
        """The speed of a rung over that of standard attention in three kernels; None if that did not run at the length."""
        standard = self.of(row.length).get("standard")
        return standard.milliseconds / row.milliseconds if standard else None

    @property
    def lengths(self) -> list[int]:
        """The lengths that were measured, in order."""
        return sorted({row.length for row in self.rows})

    def to_json(self) -> dict[str, Any]:
        """The climb as `--json` and benchmarks/results have it."""
        lists = {"rows": [asdict(row) for row in self.rows], "absent": [asdict(one) for one in self.absent]}
        return {**self.machine, **asdict(self.shape), **lists}


def climb(shape: Shape, lengths: Sequence[int], advance: Callable[[str], None] = lambda _: None) -> Climb:
    """Runs every rung at every length at which it fits the memory. Raises PlanError, CompileError, CallError.

    `advance` is told the title of each rung before it runs.

    >>> climb(Shape(512, 64, 2, 1, "float16"), [256, 512]).of(512)["two_pass"].counted["memory"]
    0
    """
    reason = device.missing()
    run = _interpreted if reason else _on_gpu
    found = [x for length in lengths for x in run(replace(shape, length=length), advance)]
    rows = tuple(x for x in found if isinstance(x, Measured))
    absent = tuple(x for x in found if isinstance(x, Absent))
    note = f"No kernel runs here ({(reason or '').rstrip('.')}): this is the interpreter, NumPy {np.__version__}"
    return Climb(machine={"gpu": None, "note": note} if reason else environment(), on_gpu=not reason, shape=shape, rows=rows, absent=absent)


def _on_gpu(shape: Shape, advance: Callable[[str], None]) -> list[Measured | Absent]:
    host = shape.arrays()
    q, k, v, o = (measure.to_gpu(x) for x in (*host, np.zeros_like(host[0])))
    rows, absent, runs = list[Measured](), list[Absent](), dict[str, Run]()
    for rung in RUNGS:
        arch = rung.arch(device.current().arch)
        if arch is None:
            absent.append(Absent(rung.name, shape.length, f"{device.current().name} has no such units"))
            continue
        advance(f"{rung.title}, {shape.length}")
        found: dict[str, int] = {}
        if rung.schedule is None:
            runs[rung.name] = partial(standard, arrays.cupy(), q, k, v)
        else:
            attention = Attention(rung.spec(shape.head_dim, shape.dtype), arch)
            runs[rung.name] = partial(attention, q, k, v, out=o)
            found = counts(attention.program).at(attention.program, shape.sizes)
        try:
            memory, result = measure.memory(runs[rung.name])
        except MemoryError:
            absent.append(Absent(rung.name, shape.length, "it takes more memory than is free"))
            del runs[rung.name]
            continue
        rows.append(
            Measured(
                rung=rung.name,
                arch=arch,
                length=shape.length,
                milliseconds=0.0,
                memory=memory,
                error=_error(shape, host, result),
                counted=found,
            )
        )
    times = timed(runs, DeviceClock(), REPETITIONS)
    return [*(replace(row, milliseconds=times[row.rung].ms) for row in rows), *absent]


def _interpreted(shape: Shape, advance: Callable[[str], None]) -> list[Measured | Absent]:
    """Rungs that differ by hardware alone are one plan here, and run once."""
    host = shape.arrays()
    rows: list[Measured | Absent] = []
    for rung in RUNGS:
        advance(f"{rung.title}, {shape.length}")
        chosen = plan(rung.spec(shape.head_dim, shape.dtype), "host")
        q, k, v = host
        tracemalloc.start()
        begin = time.perf_counter()
        result = interpret(chosen, q, k, v)["o"] if rung.schedule else standard(np, *(x.astype(np.float32) for x in host)).astype(q.dtype)
        seconds = time.perf_counter() - begin
        memory = max(0, tracemalloc.get_traced_memory()[1] - result.nbytes)
        tracemalloc.stop()
        found = counts(chosen).at(chosen, shape.sizes) if rung.schedule else {}
        rows.append(
            Measured(
                rung=rung.name,
                arch="host",
                length=shape.length,
                milliseconds=1e3 * seconds,
                memory=memory,
                error=_error(shape, host, result),
                counted=found,
            )
        )
    return rows


def _error(shape: Shape, host: Sequence[NDArray[Any]], o: NDArray[Any]) -> float:
    """The relative error of the last rows of the last head."""
    q, k, v = (x[-1:, :, -1:] for x in host)
    exact, _ = reference(Rung.spec(RUNGS[1], shape.head_dim, shape.dtype), q[:, -ROWS_CHECKED:], k, v)
    return float(np.abs(o[-1:, -ROWS_CHECKED:, -1:].astype(np.float64) - exact).max())
