"""`flashgen demo`: a spec, its kernel, the check, the speed, in about a minute.

What this machine cannot show is left out, and the reason stands in its place.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from rich.text import Text

from flashgen.arch import Arch
from flashgen.bench import DeviceClock, case, hostile, implementations, run
from flashgen.cli import check as checking
from flashgen.cli.bench import failed, relative
from flashgen.cli.terminal import console, plain
from flashgen.emulate import EmulationFault, emulate
from flashgen.errors import BackendError, CompileError
from flashgen.expr.meaning.bounds import bounds, distance
from flashgen.plan import plan
from flashgen.plan.geometry import Sizes
from flashgen.render import render
from flashgen.runtime import arrays, device, nvrtc
from flashgen.spec import Spec, load
from flashgen.spec.shipped import shipped

SPEC = "softcap"
SMALL = Sizes(batch=1, q_len=70, kv_len=90, heads=2, kv_heads=1)  # of the emulator, which takes longer to compile than to run
LENGTH = 4096  # queries and keys of the speed
NEXT = {
    f"flashgen new mine --like {SPEC}": "a spec of your own, to change",
    "flashgen check mine.yaml": "its kernel against the reference",
    "flashgen explain mine.yaml": "the plan, and the reason for every choice",
    "flashgen specs": "the published variants that ship",
    "flashgen doctor": "what works on this machine, and what to install for the rest",
}


@dataclass(frozen=True)
class Step:
    """One part of the demo: what was shown, or why it was left out."""

    title: str
    text: str
    left_out: bool = False
    passed: bool = True


def demo(arch: Arch) -> Iterator[Step]:
    """The steps, each as soon as it is done. What this machine lacks raises nothing."""
    start = shipped(SPEC)
    spec = load(start.path)
    yield Step(f"a spec: {SPEC}, {start.paper}", start.keys)
    yield _kernel(spec, arch)
    yield _tried("the binary", lambda: _binary(spec, arch))
    yield _tried("checked against float64", lambda: _checked(spec, arch))
    if missing := device.missing():
        yield _tried("the same text on this CPU", lambda: _emulated(spec, arch))
        yield Step("the speed", f"no kernel runs here: {missing}", left_out=True)
    else:
        yield _tried("the speed", lambda: _timed(spec))
    yield Step("where to go next", "\n".join(f"{command:34}{what}" for command, what in NEXT.items()))


def show(steps: Iterator[Step]) -> bool:
    """Prints the steps as they come; false if a check failed."""
    out, left, passed = console(), [], True
    for step in steps:
        out.print(Text(f"\n{step.title}{': left out' if step.left_out else ''}", style="bold"))
        out.print(*plain([step.text.rstrip("\n")]))
        left += [step.title] if step.left_out else []
        passed &= step.passed
    if left:
        out.print(*plain([f"\nleft out on this machine: {', '.join(left)}"]))
    return passed


def _tried(title: str, show_it: Callable[[], Step]) -> Step:
    try:
        return show_it()
    except (BackendError, CompileError) as error:
        return Step(title, str(error), left_out=True)


def _kernel(spec: Spec, arch: Arch) -> Step:
    chosen = plan(spec, arch)
    count, tile, score = len(render(chosen).text.splitlines()), chosen.attention.tile, chosen.holes.score.body
    text = f"{count} lines of CUDA, tiles of {tile.block_m} queries and {tile.block_n} keys; the score of the spec, among them, is\n"
    body = "\n".join(f"  {line}" for line in score.lines) if score else "  s"
    return Step(f"its kernel: {chosen.skeleton} for {arch.name}", text + body)


def _binary(spec: Spec, arch: Arch) -> Step:
    built = nvrtc.compile(render(plan(spec, arch)))
    text = f"{built.registers} registers a thread, {built.spill_bytes} bytes spilled; {built.compiler} took {built.seconds:.1f} s"
    return Step("the binary", text)


def _checked(spec: Spec, arch: Arch) -> Step:
    report = checking.check(spec, None if not device.missing() else arch.name, emulated=False, seeds=1)
    worst = max(report.outcomes, key=lambda outcome: outcome.errors["o"] / outcome.limits["o"])
    text = (
        f"{report.backend}: {sum(one.passed for one in report.outcomes)} of {len(report.outcomes)} shapes are within the error of standard "
        f"attention in {spec.dtype}; the worst is off by {worst.errors['o']:.1e} where {worst.limits['o']:.1e} is allowed"
    )
    return Step("checked against float64", text, passed=report.passed)


def _emulated(spec: Spec, arch: Arch) -> Step:
    chosen = plan(spec, arch)
    q, k, v, values = hostile.draw(spec, SMALL, (), np.random.RandomState(0))
    try:
        found = emulate(chosen, render(chosen), q, k, v, values)
    except EmulationFault as fault:
        return Step("the same text on this CPU", str(fault), passed=False)
    off = distance(found["o"], bounds(spec, q, k, v, **values)["o"])
    text = (
        f"every thread and barrier of it under the race checker, {SMALL.q_len} queries and {SMALL.kv_len} keys: no race; o is off by "
        f"{off:.1e} from float64"
    )
    return Step("the same text on this CPU", text, passed=off <= 2 * checking.FLOOR[spec.dtype])


def _timed(spec: Spec) -> Step:
    found = run([case(spec, LENGTH)], implementations(device.current().arch), DeviceClock(), arrays.cupy())
    speed = {one.implementation: one.tflops for one in found.measured}
    lines = [f"{name}: {tflops:.0f} TFLOP/s" for name, tflops in sorted(speed.items(), key=lambda item: -item[1])]
    lines += [f"not timed: {one.implementation}, {one.reason}" for one in found.skipped]
    lines += [f"flashgen is {ratio} times as fast as the best of the others" for ratio in [relative(speed)] if ratio]
    return Step(f"the speed: forward at {LENGTH} queries and keys on {device.current().name}", "\n".join(lines), passed=not failed(found))
