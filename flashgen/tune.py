"""Measures the planner's best candidates on the card and keeps the fastest, for each class of lengths; of a backward likewise."""

import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from os import cpu_count
from typing import Any

from flashgen.api import Attention
from flashgen.arch import Arch
from flashgen.bench.cases import Case, case, draw
from flashgen.bench.run import sample
from flashgen.bench.timing import Clock, Run, Timing, measure
from flashgen.errors import BackendError
from flashgen.plan import candidates
from flashgen.plan.backward import backward_candidates
from flashgen.runtime import tuned
from flashgen.runtime.backward import GpuBackward
from flashgen.runtime.choice import Choice
from flashgen.runtime.gpu import Gpu
from flashgen.spec import Spec

LENGTHS = (512, 1024, 2048, 8192)  # by default
CANDIDATES, ROUNDS = 8, 9


@dataclass(frozen=True)
class Part:
    """A part of a spec whose candidates are measured: its forward, or its backward."""

    name: str
    case: Callable[[Case], Case]  # from one of the forward
    candidates: Callable[..., Sequence[str]]  # of a spec, an arch, a length
    kernels: Callable[[Spec, Arch, str], Any]  # of a candidate: `kernel` compiles them, a call gives results, o or dq the first
    given: Callable[[Case, Mapping[str, Any]], tuple[Any, ...]]  # what such a call takes


def _of_forward(case: Case, arrays: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(arrays[name] for name in (*"qkv", *(t.name for t in case.spec.arrays))), (), {}


def _of_backward(case: Case, arrays: Mapping[str, Any]) -> tuple[Any, ...]:
    tensors = {t.name: arrays[t.name] for t in case.spec.arrays}
    found = Attention(case.spec)(*(arrays[name] for name in "qkv"), **tensors)
    named = dict(zip(case.spec.outputs, found if isinstance(found, tuple) else (found,), strict=True))
    results = {name: named[name] for name in ("o", "lse") if name in named}
    return {name: arrays[name] for name in case.arrays} | results | tensors, {p.name: p.default for p in case.spec.params}


def parts(wanted: Mapping[int, Sequence[Case]]) -> list[Part]:
    """The parts that cases have."""
    backward = any(case.spec.backward for group in wanted.values() for case in group)
    forward = Part(
        name=tuned.FORWARD,
        case=lambda case: case,
        candidates=candidates,
        kernels=lambda spec, arch, name: Gpu(spec, arch, Choice(spec, name)),
        given=_of_forward,
    )
    if not backward:
        return [forward]
    gradients = Part(
        name=tuned.BACKWARD,
        case=Case.differentiated,
        candidates=backward_candidates,
        kernels=GpuBackward,
        given=_of_backward,
    )
    return [forward, gradients]


@dataclass(frozen=True)
class Tuning:
    """All that is known of one class of lengths so far."""

    part: str  # forward or backward
    length: int  # the class: what plans are made for
    planned: str  # the cost model's choice
    ms: Mapping[str, Mapping[int, float]]  # by candidate and length
    wrong: tuple[str, ...] = ()  # candidates that failed the check, which are never chosen

    @property
    def scores(self) -> dict[str, float]:
        """The time of each candidate over that of the fastest, on average over the lengths; the fastest first."""
        least = {n: min(times[n] for times in self.ms.values()) for n in next(iter(self.ms.values()))}
        found = {name: sum(times[n] / least[n] for n in least) / len(least) for name, times in self.ms.items()}
        return dict(sorted(found.items(), key=lambda entry: entry[1]))

    @property
    def choice(self) -> str:
        """The name of the fastest candidate."""
        return next(iter(self.scores))

    @property
    def loss(self) -> float | None:
        """The loss of the cost model's candidate against the choice: 0.02 is 2 %; None if that candidate was wrong."""
        return round(self.scores[self.planned] / self.scores[self.choice] - 1, 4) if self.planned in self.ms else None

    def to_json(self) -> dict[str, Any]:
        """The tuning as a file keeps it."""
        times = {name: {str(n): round(ms, 4) for n, ms in by_length.items()} for name, by_length in self.ms.items()}
        return {
            "part": self.part,
            "choice": self.choice,
            "planned": self.planned,
            "loss": self.loss,
            "ms": times,
            "wrong": list(self.wrong),
        }


def cases(spec: Spec, lengths: Sequence[int] = LENGTHS, batch: int | None = None, heads: int | None = None) -> dict[int, list[Case]]:
    """The cases to measure, by class of lengths.

    >>> list(cases(Spec(head_dim=64, dtype="float16")))
    [512, 1024, 8192]
    """
    found: dict[int, list[Case]] = {}
    for length in sorted(set(lengths)):
        found.setdefault(tuned.length_class(length), []).append(case(spec, length, batch, heads))
    return found


def tune(
    wanted: Mapping[int, Sequence[Case]], arch: Arch, card: str, clock: Clock, xp: Any, advance: Callable[[Tuning], None] = lambda _: None
) -> list[Tuning]:
    """Measures every class in rounds, candidates in turns, and keeps the fastest after each round, so that an interruption loses nothing.

    >>> tune(cases(spec), device.arch, device.name, DeviceClock(), cupy)[0].choice

    `advance` is called after each round. Raises PlanError, CompileError, BackendError, also where no candidate is right.
    """
    found = []
    for (length, group), part in product(wanted.items(), parts(wanted)):
        found.append(_tune(part, length, list(map(part.case, group)), arch, card, clock, xp, advance))
    return found


def _tune(
    part: Part, length: int, group: list[Case], arch: Arch, card: str, clock: Clock, xp: Any, advance: Callable[[Tuning], None]
) -> Tuning:
    spec = group[0].spec
    names = part.candidates(spec, arch, length, each_tile=True)[:CANDIDATES]
    kernels = {name: part.kernels(spec, arch, name) for name in names}
    with ThreadPoolExecutor(cpu_count()) as pool:  # compilation leaves the lock alone
        list(pool.map(lambda gpu: gpu.kernel(arch, length), kernels.values()))
    runs, wrong = _runs(part, group, kernels, xp)
    if not runs:
        tried = f"all {len(wrong)} candidates of {spec.name} for {length} keys are wrong on {card}"
        raise BackendError(f"{tried}, so nothing is kept: `flashgen check` shows by how much, `flashgen doctor` what is installed")
    latest: list[Tuning] = []

    def after_round(timings: Mapping[tuple[str, int], Timing]) -> None:
        ms: dict[str, dict[int, float]] = {}
        for (name, n), timing in timings.items():
            ms.setdefault(name, {})[n] = timing.ms
        latest[:] = [Tuning(part=part.name, length=length, planned=names[0], ms=ms, wrong=wrong)]
        tuned.keep(spec, arch, length, card, latest[0].to_json(), part.name)
        advance(latest[0])

    measure(runs, clock, ROUNDS, after_round)
    return latest[0]


def _runs(part: Part, group: Sequence[Case], kernels: Mapping[str, Any], xp: Any) -> tuple[dict[tuple[str, int], Run], tuple[str, ...]]:
    """The runs to time, by candidate and length, and the candidates that are wrong somewhere."""
    runs: dict[tuple[str, int], Run] = {}
    wrong: dict[str, None] = {}
    for one in group:
        arrays = draw(one, xp)
        expected, given = sample(one, arrays), part.given(one, arrays)
        for name, gpu in kernels.items():
            run = functools.partial(gpu, *given)
            if not expected.error(run()[0]) <= expected.allowed:
                wrong[name] = None
            runs[name, one.seqlen] = run
    return {key: run for key, run in runs.items() if key[0] not in wrong}, tuple(wrong)
