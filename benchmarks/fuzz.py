"""Specs drawn from the grammar of the language, called with hostile data: interpreter and emulated kernels beside the float64 reference.

    python benchmarks/fuzz.py --minutes 60 --jobs 2    # findings as they come, the numbers to benchmarks/results/fuzz.md
    python benchmarks/fuzz.py --minutes 0 --seed 1234  # what a seed found, again

Each seed draws a few specs, and calls each in the interpreter and on one machine (Hopper, sm_80), in a process of its own.
"""

import argparse
import collections
import multiprocessing
import multiprocessing.connection
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the grammar is that of the tests

from flashgen.arch import by_name  # noqa: E402
from flashgen.bench import hostile  # noqa: E402
from flashgen.cli import check_backward  # noqa: E402
from flashgen.emulate import emulate, emulate_backward  # noqa: E402
from flashgen.errors import PlanError, SpecError  # noqa: E402
from flashgen.interpret import interpret, interpret_backward  # noqa: E402
from flashgen.plan.backward import plan_backward  # noqa: E402
from flashgen.plan.program import Program  # noqa: E402
from flashgen.render import Source, render  # noqa: E402
from flashgen.runtime.choice import Choice  # noqa: E402
from flashgen.spec import Spec  # noqa: E402
from tests.emulate import test_any_backward  # noqa: E402
from tests.plan import any_spec, gradients  # noqa: E402
from tests.plan.agreement import SCHEDULES, judge_of  # noqa: E402

SPECS, CALLS, BACKWARDS, BACKWARD_CALLS = 4, 6, 2, 3  # of a seed; of a spec, on each machine; gradients of a seed, and calls of each
LENGTHS = (0, 1, 2, 7, 31, 63, 64, 65, 100, 127, 129, 150, 200)
LIMIT, PATIENCE = 600, 6000  # seconds of a seed: of a processor, and of a machine that has others to serve
RESULTS = ROOT / "benchmarks" / "results" / "fuzz.md"
Array = np.ndarray[Any, Any]


@dataclass
class Tally:
    """The count of what was tried, and what differs."""

    specs: int = 0
    kernels: collections.Counter[str] = field(default_factory=collections.Counter)  # by family
    calls: collections.Counter[tuple[str, str]] = field(default_factory=collections.Counter)  # by family and kind
    refused: collections.Counter[str] = field(default_factory=collections.Counter)  # by the reason's first words
    findings: list[str] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        """Adds what another process counted."""
        self.specs += other.specs
        self.kernels += other.kernels
        self.calls += other.calls
        self.refused += other.refused
        self.findings += other.findings


def drawn_by(number: int, strategy: st.SearchStrategy[Any], count: int) -> list[Any]:
    """Draws what a seed stands for; the first that hypothesis draws is always the simplest, and left out."""
    found: list[Any] = []

    @seeded(number)
    @settings(max_examples=count + 1, phases=[Phase.generate], database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def collect(one: Any) -> None:
        found.append(one)

    collect()
    return found[1:]


def tried(number: int, kinds: list[str]) -> Tally:
    """Tries a seed: what it finds."""
    tally, random = Tally(), np.random.RandomState(number)
    for drawn in drawn_by(number, any_spec.specs(step=8, words=True), SPECS):
        tally.specs += 1
        free = drawn.softmax.normalized and random.randint(3) == 0
        spec = Spec(**drawn.to_json() | {"schedule": list(SCHEDULES.values())[random.randint(len(SCHEDULES))] if free else "auto"})
        for machine in ("host", str(random.choice(["sm_90a", "sm_80"]))):
            kernels = Kernels(spec, machine)
            for _ in range(CALLS):
                call(tally, number, kernels, kinds, random)
            tally.kernels += collections.Counter(family(chosen) for chosen, _ in kernels.made.values())
    for planned in drawn_by(number, test_any_backward.backwards(), BACKWARDS):
        call_backward(tally, number, planned, kinds, random)
    return tally


class Kernels:
    """The way to run a spec's calls on a machine: the interpreter on the host, else emitted kernels, one for each plan that calls need."""

    def __init__(self, spec: Spec, machine: str):
        self.choice, self.arch = Choice(spec), by_name(machine)
        self.made: dict[int, tuple[Program, Source | None]] = {}

    def serving(self, q: Array, k: Array, v: Array) -> Program:
        """The plan that serves a call; its kernels are made here."""
        chosen = self.choice.serving_arrays(self.arch, q, k, v)
        if id(chosen) not in self.made:
            self.made[id(chosen)] = chosen, None if chosen.arch.name == "host" else render(chosen)
        return chosen

    def run(self, q: Array, k: Array, v: Array, values: dict[str, Any]) -> dict[str, Array]:
        """The outputs of a call."""
        chosen, source = self.made[id(self.serving(q, k, v))]
        return interpret(chosen, q, k, v, values) if source is None else emulate(chosen, source, q, k, v, values)


def family(chosen: Program) -> str:
    """The skeleton and the architecture of a plan."""
    return "interpreter" if chosen.arch.name == "host" else f"{chosen.skeleton}, {chosen.arch.name}"


def call(tally: Tally, number: int, kernels: Kernels, kinds: list[str], random: np.random.RandomState) -> None:
    """Draws a call, runs and judges it."""
    spec, kv_heads = kernels.choice.spec, random.randint(1, 3)
    lengths = (int(random.choice(LENGTHS)) for _ in range(2))
    sizes = any_spec.sizes_of(spec, random.randint(1, 3), *lengths, kv_heads * random.randint(1, 3), kv_heads)
    ways = [kind for kind in kinds if random.randint(3) == 0]
    q, k, v, values = hostile.draw(spec, sizes, ways, random, aligned=random.randint(2) == 0)
    try:
        judged, where = judge_of(spec, q, k, v, any_spec.LOOSE, **values), family(kernels.serving(q, k, v))
    except (OverflowError, SpecError, PlanError) as error:
        tally.refused[type(error).__name__] += 1
        return
    for kind in ways or ["none"]:
        tally.calls[where, kind] += 1
    try:
        judged(kernels.run(q, k, v, values))
    except Exception as error:  # whatever it is, it is a finding
        what = f"{type(error).__name__} {error}".split("\n")[0][:200]
        tally.findings.append(f"seed {number}, {where}, {'+'.join(ways) or 'none'}: {what}\n  {brief(spec)}\n  {sizes}, {numbers(values)}")


def call_backward(tally: Tally, number: int, planned: tuple[Spec, str, int], kinds: list[str], random: np.random.RandomState) -> None:
    """Calls of the gradients of a spec, in the interpreter and in emitted kernels: of arrays as they were planned for, or of views."""
    spec, arch, copy_bytes = planned
    tally.specs += 1
    for machine in ("host", arch):
        for _ in range(BACKWARD_CALLS):
            kv_heads, lengths = random.randint(1, 3), (int(random.choice(LENGTHS)) for _ in range(2))
            sizes = any_spec.sizes_of(spec, random.randint(1, 3), *lengths, kv_heads * random.randint(1, 3), kv_heads)
            ways = [kind for kind in kinds if random.randint(3) == 0]
            if not (drawn := test_any_backward.drawn(spec, sizes, random.randint(1 << 30), ways, aligned=random.randint(2) == 0)):
                tally.refused["weights unknown"] += 1
                continue
            arrays, values = drawn
            try:
                chosen = "views" in ways
                program = check_backward.serving(spec, machine, arrays, values) if chosen else plan_backward(spec, machine, copy_bytes)
            except PlanError as error:
                tally.refused[type(error).__name__] += 1
                continue
            where = "interpreter, backward" if machine == "host" else f"{program.skeleton}, {arch}"
            tally.kernels[where] += 1
            for kind in ways or ["none"]:
                tally.calls[where, kind] += 1
            try:
                found = (
                    interpret_backward(program, arrays, values)
                    if machine == "host"
                    else emulate_backward(program, render(program), arrays, values)
                )
                gradients.judge(spec, found, arrays, **values)
            except Exception as error:  # whatever it is, it is a finding
                what = f"{type(error).__name__} {error}".split("\n")[0][:200]
                told = f"seed {number}, backward, {where}, {'+'.join(ways) or 'none'}: {what}"
                tally.findings.append(f"{told}\n  {brief(spec)}\n  {sizes}, {numbers(values)}")


def brief(spec: Spec) -> str:
    """Shortens a spec to what matters of it."""
    return ", ".join(f"{key}: {value}" for key, value in spec.to_json().items() if key not in ("params", "tensors"))


def numbers(values: dict[str, Any]) -> dict[str, Any]:
    """The values that are numbers, without the arrays."""
    return {name: x for name, x in values.items() if np.ndim(x) == 0}


def attempt(pipe: multiprocessing.connection.Connection, number: int, kinds: list[str]) -> None:
    """Tries a seed in a process of its own, for so many seconds of CPU time at most."""
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT))
    pipe.send(tried(number, kinds))


def fuzz(first: int, seconds: float, jobs: int, kinds: list[str], told: Callable[[Tally, int], object]) -> tuple[Tally, int]:
    """Seed after seed while there is time, `jobs` at once; each ends. `told` hears what they found so far, and how many they were, as this
    returns it at last."""
    total, number, end = Tally(), first, time.monotonic() + seconds
    running: dict[Any, tuple[int, Any, float]] = {}
    while running or number == first or time.monotonic() < end:
        while len(running) < jobs and (number == first or time.monotonic() < end):
            ours, theirs = multiprocessing.Pipe()
            process = multiprocessing.Process(target=attempt, args=(theirs, number, kinds))
            process.start()
            theirs.close()
            running[ours] = number, process, time.monotonic() + PATIENCE
            number += 1
        ready = multiprocessing.connection.wait(list(running), 1)
        for pipe in [pipe for pipe, (_, _, late) in running.items() if pipe in ready or time.monotonic() > late]:
            seed, process, _ = running.pop(pipe)
            tally = finished(pipe, process, seed)
            process.kill()
            process.join()
            total.add(tally)
            for finding in tally.findings:
                print(finding, flush=True)
            told(total, number - first - len(running))
    return total, number - first


def finished(pipe: Any, process: Any, seed: int) -> Tally:
    """Takes what a process has sent; a finding if it sent nothing."""
    if not pipe.poll():
        return Tally(findings=[f"seed {seed}: no end within {PATIENCE} s"])
    try:
        return pipe.recv()
    except EOFError:
        process.join()
        spent = process.exitcode in (-signal.SIGXCPU, -signal.SIGKILL)
        return Tally(findings=[f"seed {seed}: {f'no end within {LIMIT} s of a processor' if spent else 'the process died'}"])


def counted(total: Tally, seeds: int) -> str:
    """The counts in one line."""
    return f"{seeds} seeds, {total.specs} specs, {sum(total.kernels.values())} plans, {len(total.findings)} findings"


def page(total: Tally, seeds: int, arguments: argparse.Namespace, commit: str) -> str:
    """The numbers, as Markdown."""
    kinds = [*arguments.kinds, "none"]
    lines = [
        "# Specs drawn at random, called with hostile data",
        "",
        f"`benchmarks/fuzz.py --minutes {arguments.minutes:g} --seed {arguments.seed}`, commit {commit}: {counted(total, seeds)}. "
        "A call may be hostile in several ways:",
        "",
        *(f"- {kind}: {hostile.KINDS[kind]}" for kind in arguments.kinds),
        "",
        f"| | plans | {' | '.join(kinds)} |",
        f"|---|{'---|' * (len(kinds) + 1)}",
    ]
    for family, plans in sorted(total.kernels.items()):
        lines.append(f"| {family} | {plans} | {' | '.join(str(total.calls[family, kind]) for kind in kinds)} |")
    if total.refused:
        lines += ["", "Refused: " + ", ".join(f"{number} {reason}" for reason, number in total.refused.items()) + "."]
    return "\n".join([*lines, "", *(f"```\n{finding}\n```" for finding in total.findings)]).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0, help="0: one seed")
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--kinds", nargs="*", default=list(hostile.KINDS), choices=list(hostile.KINDS))
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    def write(total: Tally, seeds: int) -> None:  # after each seed: a run may be stopped
        arguments.out.write_text(page(total, seeds, arguments, commit))

    total, seeds = fuzz(arguments.seed, 60 * arguments.minutes, arguments.jobs, arguments.kinds, write)
    print(counted(total, seeds))
    sys.exit(bool(total.findings))


if __name__ == "__main__":
    main()
