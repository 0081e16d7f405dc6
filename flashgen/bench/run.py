"""Runs cases: every implementation prepared, checked and timed on the same fresh arrays, in one process."""

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flashgen.arch import by_name
from flashgen.bench import accuracy, gradients
from flashgen.bench.accuracy import Sample, visible
from flashgen.bench.cases import Case, draw
from flashgen.bench.modes import mode_of
from flashgen.bench.peers import Implementation, UnfitError
from flashgen.bench.timing import Clock, Run, measure

REPETITIONS = 11
_L2_BYTES = 2 * by_name("sm_90a").l2_bytes  # that all sets of arrays exceed together, so that none stays in the cache
_MOST_SETS = 32


@dataclass(frozen=True)
class Measured:
    """One implementation on one case."""

    case: Case
    implementation: str
    ms: float  # of a call on the device
    host_us: float  # of a call until it is queued
    compile_s: float  # of preparation and the first call, without building a mask
    mask_ms: float  # of building a mask before calls
    visible: float  # share of the pairs of a query and a key

    @property
    def tflops(self) -> float:
        """The speed in TFLOP/s, of the pairs that the mask shows."""
        return self.case.operations(self.visible) / self.ms / 1e9

    @property
    def gb_s(self) -> float:
        """The speed in GB/s, of the keys and values that are read once."""
        return self.case.key_bytes / self.ms / 1e6

    @property
    def rate(self) -> float:
        """The speed in the unit of the case's mode."""
        return self.gb_s if mode_of(self.case).unit == "GB/s" else self.tflops

    def row(self, suite: str) -> dict[str, Any]:
        """The row of a results file. `causal` is true if the mask is causal, whatever else it says."""
        case, mode = self.case, mode_of(self.case)
        row = {
            "suite": suite,
            "mode": mode.name,
            "head_dim": case.spec.head_dim.qk,
            "causal": "causal" in case.spec.mask,
            "seqlen": case.seqlen,
            "batch": case.batch,
            "heads": case.heads,
            "dtype": case.spec.dtype,
            "implementation": self.implementation,
            "ms": round(self.ms, 4),
            "tflops": round(self.tflops, 1),
        }
        if mode.unit == "GB/s":
            row |= {"gb_s": round(self.gb_s, 1), "kv_heads": case.sizes.kv_heads}
        row |= {"unequal": True} if case.unequal else {}
        return row if suite == "grid" else row | {"spec": case.variant or case.spec.name}


@dataclass(frozen=True)
class Skipped:
    """An implementation that was not timed on a case, and why: it has no words for it, failed, or was wrong."""

    case: str
    implementation: str
    reason: str
    wrong: bool = False


@dataclass
class Results:
    """All that was found so far, case by case."""

    measured: list[Measured] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)


@dataclass(frozen=True)
class _Ready:
    """A run that was checked, with the time to compile it and to build its mask."""

    run: Run
    compile_s: float
    mask_ms: float


def run(
    cases: Iterable[Case],
    implementations: Sequence[Implementation],
    clock: Clock,
    xp: Any,
    results: Results | None = None,
    repetitions: int = REPETITIONS,
    advance: Callable[[Case], None] = lambda _: None,
) -> Results:
    """Times every implementation on every case; `xp` makes the arrays. Adds to `results`; `advance` is called after each case.

    >>> run(grid(), implementations(by_name("sm_90a")), DeviceClock(), cupy).measured[0].ms
    """
    results = Results() if results is None else results
    for case in cases:
        sets = [draw(case, xp) for _ in range(max(1, min(_MOST_SETS, -(-_L2_BYTES // case.bytes))))]
        expected, share = sample(case, sets[0]), visible(case, sets[0])
        ready = {}
        for implementation in implementations:
            found = _attempt(expected, implementation, sets)
            if isinstance(found, Skipped):
                results.skipped.append(found)
            else:
                ready[implementation.name] = found
        timings = measure({name: one.run for name, one in ready.items()}, clock, repetitions)
        for name, timing in timings.items():
            one = ready[name]
            results.measured.append(
                Measured(
                    case=case,
                    implementation=name,
                    ms=timing.ms,
                    host_us=timing.host_us,
                    compile_s=one.compile_s,
                    mask_ms=one.mask_ms,
                    visible=share,
                )
            )
        advance(case)
    return results


def sample(case: Case, arrays: Mapping[str, Any]) -> Sample:
    """The rows of o, or of dq, that a case is checked by. `arrays`: those of a call, and what the spec reads, by name."""
    return gradients.sample(case, arrays) if case.gradients else accuracy.sample(case, arrays)


def _attempt(expected: Sample, implementation: Implementation, sets: Sequence[Mapping[str, Any]]) -> _Ready | Skipped:
    case = expected.case.name
    try:
        return _ready(expected, implementation, sets)
    except UnfitError as error:
        return Skipped(case, implementation.name, str(error))
    except Exception as error:  # whatever a library raises where it cannot serve a case: the others are still measured
        reason = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
        return Skipped(case, implementation.name, reason)


def _ready(expected: Sample, implementation: Implementation, sets: Sequence[Mapping[str, Any]]) -> _Ready | Skipped:
    case = expected.case
    adopted = [tuple(implementation.adopt(arrays[name]) for name in case.arrays) for arrays in sets]
    given = (*(t.name for t in case.spec.tensors), *(name for name, _ in case.spec.geometry.lengths))
    tensors = {name: implementation.adopt(sets[0][name]) for name in given}
    begin = time.perf_counter()
    prepared = implementation.prepare(case, tensors)
    error = expected.error(prepared.call(*adopted[0]))
    compile_s = time.perf_counter() - begin - prepared.mask_ms / 1e3
    if not error <= max(expected.allowed, implementation.error):
        reason = f"wrong: relative error {error:.1e}, allowed are {expected.allowed:.1e}"
        return Skipped(case.name, implementation.name, reason, wrong=True)
    following = itertools.cycle(adopted)
    return _Ready(lambda: prepared.call(*next(following)), compile_s, prepared.mask_ms)
