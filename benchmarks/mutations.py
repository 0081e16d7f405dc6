"""Plants faults in emitted kernels, mechanically, and shows what finds them on the CPU emulator.

    python benchmarks/mutations.py --jobs 16             # the table, to benchmarks/results/mutations.md
    python benchmarks/mutations.py --each 20 --first 7   # more faults a kernel, other ones

Each fault is looked for twice, by draws that share nothing: arrays, lengths, and the order in which threads run. Why a fault cannot be seen
stands in unseen.yaml, under a digest of the fault and of the text around it, so that no reason outlives what it was given for.
"""

import argparse
import dataclasses
import multiprocessing
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
from mutants import Mutant, chosen
from ruamel.yaml import YAML

from flashgen.emulate import EmulationFault, Given, emulate, emulate_backward
from flashgen.errors import CompileError
from flashgen.expr.meaning.reference import reference, reference_outputs
from flashgen.expr.meaning.reference_backward import backward
from flashgen.plan import Program, plan, plan_backward
from flashgen.plan.kernel import Backward
from flashgen.plan.shares import Demand
from flashgen.render import Source, render
from flashgen.spec import Spec

IDS = {"ids": {"shape": ["b", "kv_len"], "dtype": "int32"}}
TANH = {"score": "cap * tanh(s / cap)", "params": {"cap": 20.0}}
WGMMA, MMA_SYNC = {"block": {"m": 64, "n": 64}}, {"block": {"m": 64, "n": 32}}  # small tiles, so that short sequences have several
KERNELS: dict[str, tuple[str, dict[str, Any]]] = {
    "sm_90a causal": ("sm_90a", {"mask": "causal", "block": {"m": 128, "n": 64}, "stages": 2}),
    "sm_90a softcap": ("sm_90a", {**TANH, "block": {"m": 192, "n": 64}, "stages": 3}),
    "sm_80 pipelined": ("sm_80", {"mask": "causal", **MMA_SYNC, "stages": 2}),
    "sm_80 one stage": ("sm_80", {"mask": "causal & window(100, 0)", **MMA_SYNC, "stages": 1}),
    "sm_90a document": ("sm_90a", {"mask": "document(ids)", "tensors": IDS, **WGMMA}),
    "sm_90a float32": ("sm_90a", {"mask": "causal", "dtype": "float32"}),
    "sm_80 float32": ("sm_80", {"mask": "causal", "dtype": "float32"}),
    "three passes": ("sm_80", {"mask": "causal", "schedule": "three_pass"}),
    "keys outer": ("sm_80", {"mask": "causal", "schedule": {"normalize": "each_step", "outer": "kv"}}),
    "standard": ("sm_80", {"mask": "causal", "schedule": "standard"}),
    "sm_90a sigmoid": ("sm_90a", {"score": "sigmoid(s)", "softmax": "none", "outputs": ["o"], **WGMMA}),
    "sm_80 entropy": ("sm_80", {"mask": "causal", "softmax": "off_by_one", "outputs": ["o", "entropy"], **MMA_SYNC}),
    "sm_90a head maximum": ("sm_90a", {"outputs": ["o", "lse", "max_logit"], **WGMMA}),
    "sm_90a packed": ("sm_90a", {"mask": "causal", "layout": "thd", **WGMMA}),
    "sm_80 packed": ("sm_80", {"layout": "thd", **MMA_SYNC}),
    "sm_90a cached": ("sm_90a", {"mask": "causal", "cache": "contiguous", **WGMMA}),
    "sm_80 cached": ("sm_80", {"cache": "contiguous", **MMA_SYNC}),
    "sm_90a shares": ("sm_90a", {"mask": "causal", "split": 2, **WGMMA}),
    "sm_90a few rows": ("sm_90a", {"mask": "causal", "split": 3}),
    "sm_80 shares": ("sm_80", {"split": 2, **MMA_SYNC}),
    "sm_80 backward": ("sm_80", {"mask": "causal", "backward": True}),
    "sm_90a backward": ("sm_90a", {"mask": "causal", "backward": True}),
    "sm_80 deterministic": ("sm_80", {"mask": "document(ids)", "tensors": IDS, "backward": True, "deterministic": True}),
}
FEW = "sm_90a few rows"  # a query tile has the rows of all heads of a group
SHAPES = [(1, 300, 420, 2, 1), (2, 300, 30, 2, 2), (1, 600, 0, 1, 1)]  # batch, queries, keys, heads of q, of k: one key tile and none too
FEW_SHAPES = [(1, 3, 420, 8, 2), (2, 2, 30, 4, 2), (1, 1, 0, 4, 1)]
UNSEEN = Path(__file__).with_name("unseen.yaml")  # by kernel and digest: why nothing finds a fault
RESULTS = Path(__file__).parent / "results" / "mutations.md"
GRADIENTS = ("dq", "dk", "dv")
DRAWS = 2
LARGER = (1.0, 4.0)  # q of a draw, in 16 bits: maxima that grow by less and by more than a lazy rescale lets pass
ROUNDING = 6e-7  # at least, relative to a row's norm, as float32 sums are rounded too
DOCUMENTS = (0, 0, 1, 2)  # the first as long as the two behind it, so that tiles lie inside of it from the first on
LIMIT, PATIENCE = 120, 2400  # seconds of a mutant: of a processor, and of a machine that has others to serve
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Call:
    """Arguments, and what they should give by name."""

    given: Given
    values: dict[str, Array]
    wanted: dict[str, Array]

    def run(self, program: Program, source: Source, seed: int) -> dict[str, Array]:
        if isinstance(program.main, Backward):
            return emulate_backward(program, source, self.given, self.values, seed=seed)
        return emulate(program, source, self.given.q, self.given.k, self.given.v, self.values, seed=seed, blocks=2)

    def wrong(self, name: str, found: Array, rounding: float) -> int:
        """The numbers, or rows of an array, that are off by more than rounding; of a gradient relative to its longest row."""
        want = self.wanted[name]
        if name not in ("o", *GRADIENTS):
            return int((~np.isclose(found, want, rtol=2e-4, atol=2e-4)).sum())
        norm = np.linalg.norm(want, axis=-1)
        norm = norm.max(initial=0) if name in GRADIENTS else norm
        return int((~(np.linalg.norm(found.astype(np.float64) - want, axis=-1) <= 3 * rounding * norm + 1e-6)).sum())


def calls_of(program: Program, draw: int, few: bool) -> list[Call]:
    """A call of each shape."""
    spec, rng = program.spec, np.random.default_rng(draw)
    larger = 1.0 if spec.backward or spec.dtype == "float32" else LARGER[draw]
    return [call_of(program, rng, shape, larger) for shape in (FEW_SHAPES if few else SHAPES)]


def call_of(program: Program, rng: np.random.Generator, shape: tuple[int, ...], larger: float) -> Call:
    spec, d = program.spec, program.spec.head_dim
    b, sq, sk, h, hk = shape
    q, k, v, do = (
        rng.standard_normal(spec.order.arranged(b=b, s=s, h=n, d=columns)).astype(program.dtype.numpy)
        for s, n, columns in ((sq, h, d.qk), (sk, hk, d.qk), (sk, hk, d.v), (sq, h, d.v))
    )
    q *= larger
    k[..., 400::7, :, :] *= 1e-8  # more than float16 planes hold: float32's last query tile goes another way
    values: dict[str, Array] = {t.name: np.sort(rng.choice(np.int32(DOCUMENTS), (b, sk))) for t in spec.tensors}
    if spec.geometry.packed:
        inner = {"cu_seqlens_q": np.sort(rng.integers(0, sq, 3)), "cu_seqlens_k": np.sort(rng.integers(0, sk + 1, 3))}
        values |= {name: np.array([0, *inside, end], np.int32) for (name, inside), end in zip(inner.items(), (sq, sk), strict=True)}
    elif spec.cache:
        values["kv_lens"] = rng.integers(sk // 2, sk + 1, b).astype(np.int32)
        for batch, n in enumerate(values["kv_lens"]):
            k[batch, n:] = v[batch, n:] = np.nan
    wanted = reference_outputs(spec, q, k, v, **values) if spec.softmax.normalized else {"o": reference(spec, q, k, v, **values)[0]}
    o, lse = wanted["o"].astype(program.dtype.numpy), np.float32(wanted.get("lse", 0))
    if isinstance(program.main, Backward):
        true = backward(spec, q, k, v, do, **values)
        wanted = dict(zip(GRADIENTS, (true.q, true.k, true.v), strict=True))
    return Call(given=Given(q=q, k=k, v=v, o=o, do=do, lse=lse), values=values, wanted=wanted)


@dataclass
class Task:
    """A kernel with a fault, or without one, and what each draw finds in it."""

    kernel: str
    program: Program
    source: Source
    mutant: Mutant | None
    findings: list[str] = field(default_factory=list)  # a draw each
    seconds: list[float] = field(default_factory=list)
    compiles: bool = True

    @property
    def text(self) -> Source:
        return dataclasses.replace(self.source, text=self.mutant.apply(self.source.text)) if self.mutant else self.source

    def attempt(self, pipe: Connection) -> None:
        """Sends what is found by each draw and how long that took, or that there is nothing to run."""
        resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT))
        for draw in range(DRAWS):
            calls, begin = calls_of(self.program, draw, self.kernel == FEW), time.perf_counter()
            try:
                found = next(filter(None, (finding(self.program, self.text, call, draw) for call in calls)), "")
            except CompileError:
                pipe.send(None)
                return
            pipe.send((found, time.perf_counter() - begin))

    def take(self, pipe: Connection, process: Any) -> bool:
        """Takes in what the process that tries it has sent; true if there is no more to come."""
        try:
            sent = pipe.recv()
        except EOFError:
            process.join()
            sent = "no end" if process.exitcode in (-signal.SIGXCPU, -signal.SIGKILL) else "crash", float("nan")
        if sent is None:
            self.compiles = False
            return True
        self.findings.append(sent[0])
        self.seconds.append(sent[1])
        return len(self.findings) == DRAWS


def finding(program: Program, source: Source, call: Call, seed: int) -> str:
    rounding = max(ROUNDING, program.dtype.rounding)
    try:
        got = call.run(program, source, seed)
    except EmulationFault as fault:
        return fault.what.splitlines()[0]
    wrong = {name: call.wrong(name, got[name], rounding) for name in call.wanted}
    return "wrong values: " + ", ".join(f"{count} {name}" for name, count in wrong.items()) if any(wrong.values()) else ""


def try_all(tasks: Sequence[Task], jobs: int) -> None:
    """Tries tasks, `jobs` at once, each in a process of its own, as a fault may spin."""
    waiting, running = list(reversed(tasks)), dict[Any, tuple[Task, Any, float]]()
    while waiting or running:
        while waiting and len(running) < jobs:
            task, (ours, theirs) = waiting.pop(), multiprocessing.Pipe()
            process = multiprocessing.Process(target=task.attempt, args=(theirs,))
            process.start()
            theirs.close()
            running[ours] = task, process, time.monotonic() + PATIENCE
        ready = wait(list(running), 1)
        for pipe, (task, process, late) in list(running.items()):
            if (pipe in ready and task.take(pipe, process)) or time.monotonic() > late:
                task.findings += ["no end"] * (DRAWS - len(task.findings)) if task.compiles else []
                del running[pipe]
                process.kill()
                process.join()
                print(f"{task.kernel}: {task.mutant or 'as it is'}: {task.findings}", flush=True)


def tasks_of(each: int, first: int, only: str) -> Iterator[Task]:
    """Each kernel as it is, then with its faults. A fence or an atomic is planted once, in the first kernel that has it."""
    planted: set[str] = set()
    for name, (arch, options) in KERNELS.items():
        spec = Spec(**{"head_dim": 64, "dtype": "bfloat16", "outputs": ["o", "lse"], **options})
        if spec.backward:
            program = plan_backward(spec, arch)
        else:
            program = plan(spec, arch, demand=Demand(shared=True, rows=16) if name == FEW else None)
        source = render(program)
        drawn = chosen(source.text, each, first, planted)
        yield from (Task(name, program, source, mutant) for mutant in [None, *drawn] if only in name)


def page(tasks: Sequence[Task], arguments: argparse.Namespace) -> tuple[str, int]:
    """The tables as Markdown, and how many faults have neither been found by each draw nor a reason."""
    reasons, unexplained = YAML(typ="safe").load(UNSEEN), 0
    spent = [t.seconds[-1] for t in tasks if t.mutant and t.compiles and t.findings[-1] and len(t.seconds) == DRAWS]
    summary, tables = [], []
    for name in dict.fromkeys(t.kernel for t in tasks):
        faults = [t for t in tasks if t.kernel == name and t.mutant and t.compiles]
        counts = [0] * 4  # found by each draw, by some, by none for a reason, by none
        tables += ["", f"## {name}", "", f"| kind | change | draws of {DRAWS} | found |", "|---|---|---|---|"]
        for task in faults:
            assert task.mutant
            seen, digest = sum(map(bool, task.findings)), task.mutant.digest(task.source.text)
            reason = "" if seen == DRAWS else reasons.get(name, {}).get(digest, "")
            found = next(filter(None, task.findings), "not found")
            counts[0 if seen == DRAWS else 1 if seen else 2 if reason else 3] += 1
            unexplained += seen < DRAWS and not reason
            why = "" if seen == DRAWS else f": {reason or f'NO REASON GIVEN for {digest}'}"
            change = str(task.mutant).replace("|", "\\|")
            tables.append(f"| {task.mutant.kind} | `{change}` | {seen} | {found}{why} |".replace("\n", " "))
        summary.append(f"| {name} | {len(faults)} | {' | '.join(map(str, counts))} |")
    asked = ["git", "-C", str(UNSEEN.parent), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    head = [
        "# Faults planted in emitted kernels, and what finds them",
        "",
        f"`benchmarks/mutations.py --each {arguments.each} --first {arguments.first}`" + (f", commit {commit}." if commit else "."),
        "" if not spent else f"A draw that finds a fault takes {statistics.median(spent):.1f} s (median, compilation left out).",
        "",
        "| kernel | planted | found by each draw | by one of them | not found, for a reason | not found |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *summary, *tables]) + "\n", unexplained


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=3, help="faults of a kind, a kernel")
    parser.add_argument("--first", type=int, default=0, help="which ones")
    parser.add_argument("--kernel", default="", help="those alone whose name has this")
    parser.add_argument("--jobs", type=int, default=1, help="faults tried at once")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    tasks = list(tasks_of(arguments.each, arguments.first, arguments.kernel))
    try_all(tasks, arguments.jobs)
    for task in tasks:
        assert task.mutant or not any(task.findings), f"{task.kernel} itself is not right: {task.findings}"
    text, unexplained = page(tasks, arguments)
    arguments.out.write_text(text)
    print(f"{len(tasks)} tried, {unexplained} without a reason")
    sys.exit(unexplained > 0)


if __name__ == "__main__":
    main()
