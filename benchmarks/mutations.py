"""Plants faults in emitted kernels, mechanically, and shows what finds them on the CPU emulator.

    python benchmarks/mutations.py --each 3             # the table of docs/decisions/603, some minutes
    python benchmarks/mutations.py --each 20 --first 7  # more faults a kernel, other ones

A fault is one change: a call dropped, two neighbouring calls of different functions exchanged, a bound or a constant off by one, two
operands swapped; and every fence dropped, every atomic replaced by what is none, in the first kernel that has it. Why a fault cannot be
seen stands in unseen.yaml, under a digest of the fault and of the text around it, so that no reason outlives what it was given for.
"""

import argparse
import collections
import dataclasses
import hashlib
import multiprocessing
import random
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from ruamel.yaml import YAML

from flashgen.emulate import EmulationFault, Given, emulate, emulate_backward
from flashgen.errors import CompileError
from flashgen.expr.meaning.reference import reference_outputs
from flashgen.expr.meaning.reference_backward import backward
from flashgen.plan import Program, plan, plan_backward
from flashgen.plan.kernel import Backward
from flashgen.render import Source, render
from flashgen.spec import Spec

IDS = {"ids": {"shape": ["b", "kv_len"], "dtype": "int32"}}
KERNELS = {  # small tiles, so that short sequences have several
    "sm_90a causal": ("sm_90a", {"mask": "causal", "block": {"m": 128, "n": 64}, "stages": 2}),
    "sm_90a softcap": ("sm_90a", {"score": "cap * tanh(s / cap)", "params": {"cap": 20.0}, "block": {"m": 192, "n": 64}, "stages": 3}),
    "sm_80 pipelined": ("sm_80", {"mask": "causal", "block": {"m": 64, "n": 32}, "stages": 2}),
    "sm_80 one stage": ("sm_80", {"mask": "causal & window(100, 0)", "block": {"m": 64, "n": 32}, "stages": 1}),
    "sm_90a document": ("sm_90a", {"mask": "document(ids)", "tensors": IDS, "block": {"m": 64, "n": 64}}),
    "sm_90a float32": ("sm_90a", {"mask": "causal", "dtype": "float32"}),
    "sm_80 float32": ("sm_80", {"mask": "causal", "dtype": "float32"}),
    "three passes": ("sm_80", {"mask": "causal", "schedule": "three_pass"}),
    "keys outer": ("sm_80", {"mask": "causal", "schedule": {"normalize": "each_step", "outer": "kv"}}),
    "standard": ("sm_80", {"mask": "causal", "schedule": "standard"}),
    "sm_80 entropy": ("sm_80", {"mask": "causal", "softmax": "off_by_one", "outputs": ["o", "entropy"], "block": {"m": 64, "n": 32}}),
    "sm_90a head maximum": ("sm_90a", {"outputs": ["o", "lse", "max_logit"], "block": {"m": 64, "n": 64}}),
    "sm_80 backward": ("sm_80", {"mask": "causal", "backward": True}),
    "sm_90a backward": ("sm_90a", {"mask": "causal", "backward": True}),
    "sm_80 deterministic": ("sm_80", {"mask": "document(ids)", "tensors": IDS, "backward": True, "deterministic": True}),
}
SHAPES = [
    (1, 300, 420, 2, 1),
    (2, 300, 30, 2, 2),
    (1, 600, 0, 1, 1),
]  # batch, queries, keys, heads of q, of k: one key tile and none too
UNSEEN = Path(__file__).with_name("unseen.yaml")  # by kernel and digest: why nothing finds a fault
GRADIENTS = ("dq", "dk", "dv")
SEEDS = 4
ROUNDING = 6e-7  # at least, relative to a row's norm, as float32 sums are rounded too
SHOWN = 60  # characters of a change
LIMIT = 120  # seconds of a mutant, its compilation included
CALL = re.compile(r"(if \(\w+\) )?[\w:.]+(<[^;]*>)?\(.*\);$")
OFF_BY_ONE = [
    (" < ", " <= "),
    (" <= ", " < "),
    (" > ", " >= "),
    (" >= ", " > "),
    (" + 1", ""),
    (" - 1", ""),
    (" ^ 1", ""),
    (" & 1", " & 3"),
    (" % 8", " % 4"),
]
OPERANDS = re.compile(r'("[rlf]")(\([^()]*\)), \1(\([^()]*\))')
FENCE = re.compile(r"\b(ptx::\w*fence\w*|__threadfence)\(\);")
ATOMIC = re.compile(r"\batomicAdd\(([^()]+), (\w+)\)")
ALL = ("fence", "atomic")  # kinds of which there are few
ARGUMENTS = re.compile(r"\b(\w+\()([\w.]+), ([\w.]+)(?=[,)])")


@dataclass(frozen=True)
class Mutant:
    """A change of some lines."""

    kind: str
    line: int  # the first, from 0
    old: tuple[str, ...]
    new: tuple[str, ...]

    def apply(self, text: str) -> str:
        lines = text.splitlines()
        lines[self.line : self.line + len(self.old)] = self.new
        return "\n".join(lines) + "\n"

    def digest(self, text: str) -> str:
        """Of the change and the lines around it, up to an empty one on either side."""
        lines = text.splitlines()
        begin = max((i for i in range(self.line) if not lines[i]), default=0)
        end = next((i for i in range(self.line, len(lines)) if not lines[i]), len(lines))
        return hashlib.sha256("\n".join([*lines[begin:end], str(self.line - begin), *self.new]).encode()).hexdigest()[:8]

    def __str__(self) -> str:
        old, new = ("  ".join(line.partition("//")[0].strip() for line in side) for side in (self.old, self.new))
        if self.kind in ("drop", "move"):
            return short(old)
        at = next(i for i, (a, b) in enumerate(zip(old + " ", new + " ", strict=False)) if a != b)
        begin = max(0, at - SHOWN // 3)
        return f"{short(old[begin:])}  →  {short(new[begin:])}"


def short(text: str) -> str:
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


def mutants(text: str) -> Iterator[Mutant]:
    """Every change that the four rules allow, in the text from the device vocabulary on."""
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("namespace ptx"))
    for i, line in enumerate(lines[first:], first):
        code, _, _ = line.partition("//")
        if not code.strip() or code.lstrip().startswith("#"):
            continue
        arguments = [] if "asm" in code or "__launch_bounds__" in code else [ARGUMENTS.sub(r"\1\3, \2", code, count=1)]
        for new in [OPERANDS.sub(r"\1\3, \1\2", code, count=1), *arguments]:
            if new != code:
                yield Mutant("swap", i, (line,), (new,))
        if "asm" in code or "__launch_bounds__" in code:
            continue
        for m in FENCE.finditer(code):
            yield Mutant("fence", i, (line,), (code[: m.start()] + ";" + code[m.end() :],))
        for m in ATOMIC.finditer(code):
            yield Mutant("atomic", i, (line,), (f"{code[: m.start()]}((*({m[1]}) += {m[2]}) - {m[2]}){code[m.end() :]}",))
            yield Mutant("atomic", i, (line,), (f"{code[: m.start()]}0{code[m.end() :]}",))
        if CALL.match(code.strip()) and not FENCE.search(code):
            yield Mutant("drop", i, (line,), ("",))
            after = lines[i + 1] if i + 1 < len(lines) else ""
            if CALL.match(after.partition("//")[0].strip()) and indentation(after) == indentation(line) and callee(after) != callee(line):
                yield Mutant("move", i, (line, after), (after, line))
        for old, new in OFF_BY_ONE:
            for at in (m.start() for m in re.finditer(re.escape(old) + r"\b", code)):
                yield Mutant("off by one", i, (line,), (code[:at] + new + code[at + len(old) :],))


def callee(line: str) -> str:
    return line.strip().partition("(")[0]


def indentation(line: str) -> int:
    return len(line) - len(line.lstrip())


def chosen(text: str, each: int, first: int, planted: set[str]) -> list[Mutant]:
    """So many of each kind, drawn without looking; all fences and atomics that were not planted yet."""
    draw, by_kind = random.Random(first), {}
    for mutant in mutants(text):
        if mutant.kind not in ALL or str(mutant) not in planted:
            by_kind.setdefault(mutant.kind, []).append(mutant)
    planted.update(str(mutant) for kind in ALL for mutant in by_kind.get(kind, []))
    return [
        m
        for kind in sorted(by_kind)
        for m in draw.sample(by_kind[kind], len(by_kind[kind]) if kind in ALL else min(each, len(by_kind[kind])))
    ]


@dataclass(frozen=True, kw_only=True)
class Call:
    """Arguments, and what they should give by name."""

    given: Given
    values: dict[str, np.ndarray]
    wanted: dict[str, np.ndarray]

    def run(self, a_plan: Program, source: Source, seed: int) -> dict[str, np.ndarray]:
        if isinstance(a_plan.main, Backward):
            return emulate_backward(a_plan, source, self.given, self.values, seed=seed)
        return emulate(a_plan, source, self.given.q, self.given.k, self.given.v, self.values, seed=seed, blocks=2)

    def wrong(self, name: str, found: np.ndarray, rounding: float) -> int:
        """The numbers, or rows of an array, that are off by more than rounding; of a gradient relative to its longest row."""
        want = self.wanted[name]
        if name not in ("o", *GRADIENTS):
            return int((~np.isclose(found, want, rtol=2e-4, atol=2e-4)).sum())
        norm = np.linalg.norm(want, axis=-1)
        norm = norm.max(initial=0) if name in GRADIENTS else norm
        return int((~(np.linalg.norm(found.astype(np.float64) - want, axis=-1) <= 3 * rounding * norm + 1e-6)).sum())


def calls_of(a_plan: Program) -> list[Call]:
    """A call of each shape."""
    rng, d = np.random.default_rng(0), a_plan.spec.head_dim
    calls = []
    for b, sq, sk, h, hk in SHAPES:
        shapes = ((b, sq, h, d.qk), (b, sk, hk, d.qk), (b, sk, hk, d.v))
        q, k, v = (rng.standard_normal(shape).astype(a_plan.dtype.numpy) for shape in shapes)
        k[:, 400::7] *= 1e-8  # more than float16 planes hold: float32's last query tile goes another way
        values = {t.name: np.sort(rng.integers(0, 4, (b, sk)).astype(np.int32)) for t in a_plan.spec.tensors}
        wanted = reference_outputs(a_plan.spec, q, k, v, **values)
        o, do = wanted["o"].astype(a_plan.dtype.numpy), rng.standard_normal(wanted["o"].shape).astype(a_plan.dtype.numpy)
        if isinstance(a_plan.main, Backward):
            true = backward(a_plan.spec, q, k, v, do, **values)
            gradients = dict(zip(GRADIENTS, (true.q, true.k, true.v), strict=True))
            calls.append(Call(given=Given(q=q, k=k, v=v, o=o, do=do, lse=np.float32(wanted["lse"])), values=values, wanted=gradients))
        else:
            calls.append(Call(given=Given(q=q, k=k, v=v, o=o, do=do), values=values, wanted=wanted))
    return calls


def attempt(pipe: Connection, a_plan: Program, source: Source, calls: list[Call]) -> None:
    """Sends what is found under each seed, or why there is nothing to run."""
    for seed in range(SEEDS):
        try:
            pipe.send(next(filter(None, (finding(a_plan, source, call, seed) for call in calls)), ""))
        except CompileError:
            pipe.send(None)
            return


def finding(a_plan: Program, source: Source, call: Call, seed: int) -> str:
    rounding = max(ROUNDING, a_plan.dtype.rounding)
    try:
        got = call.run(a_plan, source, seed)
    except EmulationFault as fault:
        return fault.what.splitlines()[0]
    wrong = {name: call.wrong(name, got[name], rounding) for name in call.wanted}
    return "wrong values: " + ", ".join(f"{count} {name}" for name, count in wrong.items()) if any(wrong.values()) else ""


def outcome(a_plan: Program, source: Source, calls: list[Call]) -> tuple[int, str] | None:
    """How many seeds see it, and the first finding; None when the change does not compile. In a process of its own, as a fault may spin."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=attempt, args=(theirs, a_plan, source, calls))
    process.start()
    theirs.close()
    found = []
    try:
        while len(found) < SEEDS and ours.poll(LIMIT):
            found.append(ours.recv())
            if found[-1] is None:
                return None
    except EOFError:
        found.append("crash")
    finally:
        process.kill()
        process.join()
    found += ["no end"] * (SEEDS - len(found))
    return sum(map(bool, found)), next(filter(None, found), "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=4, help="faults of a kind, a kernel")
    parser.add_argument("--first", type=int, default=0, help="which ones")
    parser.add_argument("--kernel", default="", help="those alone whose name has this")
    arguments = parser.parse_args()
    reasons, count = YAML(typ="safe").load(UNSEEN), collections.Counter()
    planted: set[str] = set()
    for name, (arch, options) in ((name, how) for name, how in KERNELS.items() if arguments.kernel in name):
        spec = Spec(**{"head_dim": 64, "dtype": "bfloat16", "outputs": ["o", "lse"], **options})
        a_plan = (plan_backward if spec.backward else plan)(spec, arch)
        source, calls = render(a_plan), calls_of(a_plan)
        assert outcome(a_plan, source, calls) == (0, ""), "the kernel itself is not right"
        print(f"\n{name}\n\n| kind | change | seeds of {SEEDS} | found |\n|---|---|---|---|", flush=True)
        for mutant in chosen(source.text, arguments.each, arguments.first, planted):
            result = outcome(a_plan, dataclasses.replace(source, text=mutant.apply(source.text)), calls)
            if result is not None:
                seeds, finding = result
                digest = mutant.digest(source.text)
                reason = "" if seeds else reasons.get(name, {}).get(digest, "")
                verdict = finding or f"not found: {reason or f'NO REASON GIVEN for {digest}'}"
                count["found" if seeds else "not found, for a reason" if reason else "not found, no reason given"] += 1
                change = str(mutant).replace("|", "\\|")
                print(f"| {mutant.kind} | `{change}` | {seeds} | {verdict} |", flush=True)
    print(f"\nOf {count.total()} faults: " + ", ".join(f"{number} {outcome}" for outcome, number in count.items()))
    sys.exit(count["not found, no reason given"] > 0)


if __name__ == "__main__":
    main()
