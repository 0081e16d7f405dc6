"""Faults that a script plants in emitted kernels: one change each, by rules that know nothing of the kernel.

A call dropped, two neighbouring calls of different functions exchanged, a bound or a constant off by one, two operands swapped; and every
fence dropped, every atomic replaced by what is none, in the first kernel that has it.
"""

import hashlib
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

SHOWN = 60  # characters of a change
CALL = re.compile(r"(?!static_assert)(if \(\w+\) )?[\w:.]+(<[^;]*>)?\(.*\);$")
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
        """Changes the text."""
        lines = text.splitlines()
        lines[self.line : self.line + len(self.old)] = self.new
        return "\n".join(lines) + "\n"

    def digest(self, text: str) -> str:
        """A digest of the change and the lines around it, up to an empty one on either side."""
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
    """A line, cut where it is long."""
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
    """The name of the function that a line calls."""
    return line.strip().partition("(")[0]


def indentation(line: str) -> int:
    """The blanks that a line begins with."""
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
