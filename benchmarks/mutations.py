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
from families import Family, families
from mutants import Mutant, chosen
from ruamel.yaml import YAML

from flashgen.errors import CompileError
from flashgen.render import Source

UNSEEN = Path(__file__).with_name("unseen.yaml")  # by kernel and digest: why nothing finds a fault
RESULTS = Path(__file__).parent / "results" / "mutations.md"
DRAWS = 2
LIMIT, PATIENCE = 40, 1200  # seconds of a mutant: of a processor, and of a machine that has others to serve


@dataclass
class Task:
    """A kernel with a fault, or without one, and what each draw finds in it."""

    family: Family
    mutant: Mutant | None
    findings: list[str] = field(default_factory=list)  # a draw each
    seconds: list[float] = field(default_factory=list)
    compiles: bool = True

    @property
    def text(self) -> Source:
        """The source with the fault planted."""
        source = self.family.source
        return dataclasses.replace(source, text=self.mutant.apply(source.text)) if self.mutant else source

    def attempt(self, pipe: Connection) -> None:
        """Sends what is found by each draw and how long that took, or that there is nothing to run."""
        resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT))
        for draw in range(DRAWS):
            calls, begin = list(self.family.calls(draw)), time.perf_counter()
            try:
                found = next(filter(None, (call.finding(self.text, draw) for call in calls)), "")
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


def try_all(tasks: Sequence[Task], jobs: int) -> Iterator[Task]:
    """Tries tasks, `jobs` at once, each in a process of its own, as a fault may spin; yields each when it is done."""
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
                yield task


def tasks_of(each: int, first: int, only: str) -> Iterator[Task]:
    """Each kernel as it is, then with its faults. A fence or an atomic is planted once, in the first kernel that has it."""
    planted: set[str] = set()
    for family in families():
        drawn = chosen(family.source.text, each, first, planted)
        yield from (Task(family, mutant) for mutant in [None, *drawn] if only in family.name)


def page(tasks: Sequence[Task], arguments: argparse.Namespace) -> tuple[str, int]:
    """The tables as Markdown, and how many faults have neither been found by each draw nor a reason."""
    reasons, unexplained = YAML(typ="safe").load(UNSEEN), 0
    spent = [t.seconds[-1] for t in tasks if t.mutant and t.compiles and t.findings[-1] and np.isfinite(t.seconds[-1:]).any()]
    summary, tables = [], []
    for name in dict.fromkeys(t.family.name for t in tasks):
        faults = [t for t in tasks if t.family.name == name and t.mutant and t.compiles]
        counts = [0] * 4  # found by each draw, by some, by none for a reason, by none
        tables += ["", f"## {name}", "", f"| kind | change | draws of {DRAWS} | found |", "|---|---|---|---|"]
        for task in faults:
            assert task.mutant
            seen, digest = sum(map(bool, task.findings)), task.mutant.digest(task.family.source.text)
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
    tasks, unexplained = list(tasks_of(arguments.each, arguments.first, arguments.kernel)), 0
    for task in try_all(tasks, arguments.jobs):
        print(f"{task.family.name}: {task.mutant or 'as it is'}: {task.findings}", flush=True)
        text, unexplained = page([task for task in tasks if task.findings], arguments)
        arguments.out.write_text(text)  # so far, so that whoever stops it has what there is
    for task in tasks:
        assert task.mutant or not any(task.findings), f"{task.family.name} itself is not right: {task.findings}"
    print(f"{len(tasks)} tried, {unexplained} without a reason")
    sys.exit(unexplained > 0)


if __name__ == "__main__":
    main()
