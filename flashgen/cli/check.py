"""`flashgen check`: a kernel against the float64 reference, over a spread of shapes and of data that breaks kernels."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from flashgen.api import Attention
from flashgen.arch import DEFAULT, by_name
from flashgen.bench import hostile
from flashgen.cli import check_backward
from flashgen.cli.errors import CommandError
from flashgen.cli.terminal import console, plain
from flashgen.cli.terminal import table as lines
from flashgen.emulate import EmulationFault
from flashgen.emulate.numbers import AXES, differences, worst
from flashgen.emulate.run import Emulated
from flashgen.emulate.run import emulate as run_emulated
from flashgen.expr.language.reads import indices, over
from flashgen.expr.meaning.bounds import Between, bounds, distance
from flashgen.expr.meaning.reference import output_heads_first
from flashgen.interpret import interpret
from flashgen.plan import plan
from flashgen.plan.geometry import Sizes, sizes_of
from flashgen.render import render
from flashgen.runtime import arrays, device
from flashgen.runtime.arguments import check_arrays, output_shapes
from flashgen.runtime.arrays import liken
from flashgen.runtime.choice import Choice
from flashgen.spec import Spec
from flashgen.spec.outputs import OUTPUTS, ROW

Array = NDArray[Any]
Run = Callable[[Array, Array, Array, Mapping[str, Any], int], Mapping[str, Array]]  # q, k, v, values, seed; outputs by name

FLOOR = {"float16": 5e-4, "bfloat16": 4e-3, "float32": 1e-5}  # that an error of o may have whatever standard attention has
ROUNDED = 4e-3  # at least, of every output, where a spec asks for operands of 11 bits, precision: tf32

# batch, queries, keys, key/value heads: one query, tails, tiles to the row, more queries than keys and fewer, several tiles; and so many
# keys that each class of lengths, which may have tiles of its own, is there.
SHAPES = (
    (2, 1, 129, 2),
    (1, 64, 64, 1),
    (1, 128, 256, 2),
    (2, 200, 200, 1),
    (1, 300, 77, 1),
    (1, 77, 300, 2),
    (1, 517, 517, 1),
    (1, 70, 1100, 1),
)
SHORT = ((2, 1, 1, 2), (1, 0, 64, 1), (1, 64, 0, 1))  # no query, no key, one of each
HOSTILE = (2, 70, 150, 2)  # of data of each kind of flashgen.bench.hostile that the spec can meet
LENGTHS = ("batch", "q_len", "kv_len", "heads", "kv_heads")  # of Sizes, that a report shows
Case = tuple[str, Sizes, Mapping[str, Array]]  # the kind of its data, "" for normal; its sizes; tensors that are not drawn


@dataclass(frozen=True)
class Outcome:
    """One shape and kind of data: how far results are outside of the reference's bounds at most, and how far they may be."""

    data: str  # a kind of flashgen.bench.hostile, "short", "given", or "" for normal
    sizes: Sizes
    errors: Mapping[str, float]  # by output
    limits: Mapping[str, float]  # o: twice the error of standard attention in the same dtype, and a floor; others: as their rows say
    fault: str = ""  # what the emulator found, or which elements are off and how

    def to_json(self) -> dict[str, Any]:
        """The fields by name, the lengths among them."""
        judged = {"error": self.errors, "limit": self.limits}
        numbers = {f"{name}_{what}": found[name] for name in self.errors for what, found in judged.items()}
        return {"data": self.data, **{length: getattr(self.sizes, length) for length in LENGTHS}, **numbers, "fault": self.fault}

    @property
    def passed(self) -> bool:
        """True if no fault was found and every output is within its limit."""
        return not self.fault and all(self.errors[name] <= limit for name, limit in self.limits.items())


@dataclass(frozen=True)
class Report:
    """All shapes. `backend` is what ran: a kernel on a GPU, under the emulator, or a plan in the interpreter."""

    spec: str
    backend: str
    outcomes: tuple[Outcome, ...]

    @property
    def outputs(self) -> tuple[str, ...]:
        """The outputs that were judged."""
        return tuple(self.outcomes[0].errors)

    @property
    def passed(self) -> bool:
        """True if all shapes passed."""
        return all(outcome.passed for outcome in self.outcomes)

    def to_json(self) -> dict[str, Any]:
        """The report as `--json` prints it."""
        shapes = [_finite(outcome.to_json()) | {"passed": outcome.passed} for outcome in self.outcomes]
        return {"spec": self.spec, "backend": self.backend, "passed": self.passed, "shapes": shapes}


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    """The number, or None for one that JSON cannot hold."""
    return {k: None if v == math.inf else v for k, v in values.items()}


def check(spec: Spec, arch: str | None, emulated: bool, seeds: int, given: tuple[Sizes, Mapping[str, Array]] | None = None) -> Report:
    """Runs every shape, under every seed; or, with `given`, these sizes with these tensors. Raises SpecError, PlanError, CompileError,
    BackendError, CallError for tensors that do not fit the spec or each other."""
    spec = _judged(spec)
    backend, run = _emulator(spec, arch) if emulated else _here(spec, arch)
    gradients = check_backward.runner(spec, arch, emulated) if spec.backward else None
    errors = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed} of {task.total} runs"))
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as progress:
        cases = [("given", *given)] if given else _cases(spec)
        task = progress.add_task(f"{spec.name}, {backend}", total=len(cases) * seeds)
        outcomes = tuple(_outcome(spec, (run, gradients), case, seeds, lambda: progress.advance(task)) for case in cases)
    return Report(spec.name, backend, outcomes)


def _emulator(spec: Spec, arch: str | None) -> tuple[str, Run]:
    choice, target = Choice(spec), by_name(arch or DEFAULT)
    if target.on_cpu:
        raise CommandError(
            "--emulate runs kernels, and host is the interpreter, which has none. Give another --arch, as sm_90a, or leave --emulate out"
        )

    def run(q: Array, k: Array, v: Array, values: Mapping[str, Any], seed: int) -> Mapping[str, Array]:
        chosen = choice.serving_arrays(target, q, k, v, values)
        return run_emulated(chosen, render(chosen), q, k, v, values, seed=seed)

    return f"{choice.plan(target).skeleton} for {target.name} under the emulator", run


def _here(spec: Spec, arch: str | None) -> tuple[str, Run]:
    """The name and the runner of what this machine has: the kernel if there is a GPU that has one, else the interpreter."""
    attention = None if device.missing() else Attention(spec, arch)
    if attention is None or attention.arch.on_cpu:
        choice, target = Choice(spec), by_name(arch or "host")

        def interpreted(q: Array, k: Array, v: Array, values: Mapping[str, Any], seed: int) -> Mapping[str, Array]:  # noqa: ARG001
            return interpret(choice.serving_arrays(target, q, k, v, values), q, k, v, values)

        return f"plan for {choice.plan(target).arch.name} in the interpreter", interpreted
    family = arrays.cupy_family()

    def run(q: Array, k: Array, v: Array, values: Mapping[str, Any], seed: int) -> Mapping[str, Array]:  # noqa: ARG001
        out = {name: family.from_numpy(x) for name, x in _poisoned(spec, q, k, values).items()}
        tensors = {t.name: family.from_numpy(values[t.name]) for t in spec.arrays}
        attention(*map(family.from_numpy, (q, k, v)), out=tuple(out.values()), **{**values, **tensors})
        return {name: family.to_numpy(x) for name, x in out.items()}

    return f"{attention.program.skeleton} for {attention.arch.name} on {device.current().name}", run


def _poisoned(spec: Spec, q: Array, k: Array, values: Mapping[str, Any]) -> dict[str, Array]:
    """Fresh outputs, full of NaN."""
    of_q, of_k = (spec.order_of(role).by_rows(x).shape for role, x in (("q", q), ("k", k)))
    shapes = output_shapes(spec, sizes_of(spec, of_q, of_k, {name: values[name].shape for name in spec.sizing}))
    return {name: np.full(shape, np.nan, spec.output_element(name).numpy) for name, shape in shapes.items()}


def _judged(spec: Spec) -> Spec:
    """The spec, with its lse, which tells more than o, where there is one."""
    return Spec(**(spec.to_json() | {"outputs": [*dict.fromkeys((*spec.outputs, "lse"))]})) if spec.softmax.normalized else spec


def _standard(spec: Spec) -> Spec:
    """The spec as standard attention: s and p as a whole; without a sum there is but one schedule."""
    free = {k: v for k, v in spec.to_json().items() if k not in ("block", "stages", "warps", "schedule")}
    return Spec(**free, schedule="standard" if spec.softmax.normalized else "auto")


def _cases(spec: Spec) -> list[Case]:
    """Normal data in every shape, what is short, and hostile data of each kind."""
    kinds = hostile.kinds_of(spec, _sizes(spec, HOSTILE))
    shapes = [*(("", shape) for shape in SHAPES), *(("short", shape) for shape in SHORT), *((kind, HOSTILE) for kind in kinds)]
    return [(kind, _sizes(spec, shape), {}) for kind, shape in shapes]


def _sizes(spec: Spec, shape: tuple[int, int, int, int]) -> Sizes:
    batch, q_len, kv_len, kv_heads = shape
    kv_len = q_len if _as_many_keys(spec) else kv_len
    kv_len = -(-kv_len // spec.page) * spec.page if spec.page else kv_len
    return Sizes(batch=batch, q_len=q_len, kv_len=kv_len, heads=kv_heads * (spec.group or 2), kv_heads=kv_heads, page=spec.page or 1)


def _as_many_keys(spec: Spec) -> bool:
    """True if an axis is read by query, and by key or as long as k is, or the other way round: calls then have as many keys as queries."""
    extents = {"q_idx": "q_len", "kv_idx": "kv_len"}
    asked = (
        {extents.get(index) for index in over(read)} | {str(axis)}
        for tensor in spec.tensors
        for axis, read in zip(tensor.shape, indices(spec)[tensor.name], strict=True)
    )
    return any(set(extents.values()) <= names for names in asked)


def _outcome(spec: Spec, runs: tuple[Run, check_backward.Run | None], case: Case, seeds: int, advance: Callable[[], None]) -> Outcome:
    (data, sizes, given), (run, gradients) = case, runs
    random = np.random.RandomState((sizes.batch, sizes.q_len, sizes.kv_len))
    q, k, v, values = hostile.draw(spec, sizes, [data], random, aligned=False)
    values |= given
    check_arrays(spec, {name: liken(x, name).layout for name, x in {"q": q, "k": k, "v": v, **values}.items() if hasattr(x, "shape")})
    known = bounds(spec, q, k, v, **values)
    clean_k, clean_v = (np.where(np.isfinite(x), x, x.dtype.type(0)) for x in (k, v))  # what is hidden may be anything, here 0
    standard = interpret(plan(_standard(spec), "host"), q, clean_k, clean_v, values)
    least = ROUNDED if spec.precision == "tf32" else 0.0
    limits = {name: max(least, OUTPUTS[name].tolerance or 0.0) for name in spec.outputs}
    floor = max(least, FLOOR[spec.dtype], FLOOR[spec.out_element.name])
    for name in (name for name in spec.outputs if OUTPUTS[name].like_o):
        off = distance(standard[name], known[name])
        limits[name] = floor + (2 * off if math.isfinite(off) else 0.0)
    errors, fault = dict.fromkeys(spec.outputs, 0.0), ""
    for seed in range(seeds):
        try:
            found = run(q, k, v, values, seed)
        except EmulationFault as error:
            fault = str(error)
            break
        errors = {name: max(error, distance(found[name], known[name])) for name, error in errors.items()}
        fault = fault or "\n".join(_off(spec, found, known, limits))
        advance()
    if gradients and not fault and check_backward.judged(spec, data):
        try:
            of_gradients, allowed, fault = check_backward.errors(spec, gradients, (q, k, v), values, seeds)
            errors, limits = errors | of_gradients, limits | allowed
        except EmulationFault as error:
            fault = str(error)
    return Outcome(data=data, sizes=sizes, errors=errors, limits=limits, fault=fault)


def _off(spec: Spec, found: Mapping[str, Array], known: Mapping[str, Between], limits: Mapping[str, float]) -> Iterator[str]:
    """Says which elements of the outputs are off, and how; of emulated kernels also who wrote the worst."""
    emulated = found if isinstance(found, Emulated) else None
    for name, limit in limits.items():
        by_row = OUTPUTS[name].axes == ROW
        whole = spec.order.expanded if by_row else np.asarray
        like_o = OUTPUTS[name].like_o
        x, low, high = (output_heads_first(x, spec) if like_o else whole(x) for x in (found[name], *known[name]))
        axes = AXES if like_o or by_row else ("head",)
        if off := differences(name, x, (low, high), limit, emulated.block_m if emulated else 0, axes):
            yield off
            if emulated and (who := emulated.writer(name, worst(found[name], known[name]))):
                yield f"  it was written by {who}"


def table(report: Report) -> None:
    """A line a case, and the verdict."""
    out = console()
    out.print(f"{report.spec}: {report.backend}, against the float64 reference")
    judged = [column for name in report.outputs for column in (f"error of {name}", "allowed")]
    rows = lines("", "data", "B", "Sq", "Sk", "Hq", "Hk", *judged, right=("B", "Sq", "Sk", "Hq", "Hk"))
    for outcome in report.outcomes:
        rows.add_row(*_cells(outcome))
    out.print(rows)
    for fault in _faults(report):
        out.print(*plain([fault]))
    failed = [outcome for outcome in report.outcomes if not outcome.passed]
    for kind in dict.fromkeys(outcome.data for outcome in failed if outcome.data in hostile.KINDS):
        out.print(f"{kind} failed: {hostile.KINDS[kind]}")
    out.print(f"{len(failed)} of {len(report.outcomes)} cases failed" if failed else "all within the error of standard attention")


def _cells(outcome: Outcome) -> Iterator[str]:
    yield from ("ok" if outcome.passed else "FAILED", outcome.data)
    yield from (str(getattr(outcome.sizes, length)) for length in LENGTHS)
    yield from (f"{x:.2e}" for name in outcome.errors for x in (outcome.errors[name], outcome.limits[name]))


def _faults(report: Report) -> Iterator[str]:
    return (outcome.fault for outcome in report.outcomes if outcome.fault)
