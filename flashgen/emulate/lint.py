"""Finds faults that running a CUDA text cannot show: asm statements that tell the compiler less than their instructions do.

An emulator runs the statements in the order of the text, each with its operands at hand. A compiler moves, joins and drops what it may, and
keeps in registers what it was not told of: of a wrong constraint the card alone would tell, under some compilers. Source: Inline PTX
Assembly in CUDA, 1.2 Pitfalls; GCC manual, 6.11.2.

>>> for finding in findings('asm("bar.sync 0, 32;");'): print(finding)
line 1: `bar.sync` in asm without volatile: the compiler may move it, join it with its like or drop it
line 1: `bar.sync` in asm without the "memory" clobber: the compiler may keep values of memory over it
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from flashgen.emulate.asm import Asm, cut, pieces, statements

# Instructions that depend on their operands alone, so that the compiler may move them.
FREE = re.compile(
    r"(setp|mov|mul|add|sub|mad|fma|min|max|abs|neg|and|or|xor|not|shl|shr|selp|prmt|cvt|ex2|lg2|tanh|rcp|sqrt|rsqrt|sin|cos|bmsk)\."
    r"|mma\.sync\.|createpolicy\.|mapa\.|bra$|ld\.global\.nc\."
)
# Those that change what no C++ object lies in, between other asm statements: order among these, which volatile gives, is enough.
ORDERED = re.compile(
    r"(st\.shared|stmatrix|mbarrier\.init|fence\.mbarrier_init|wgmma\.mma_async|setmaxnreg|prefetch)\b|griddepcontrol\.launch"
)
NO_RESULT = re.compile(
    r"(bar|barrier|setmaxnreg|griddepcontrol|nanosleep|bra|fence|prefetch)\b|.*\.wait_group|.*\.wait_all|st\.|red\.|stmatrix\."
)
ACCUMULATES = "wgmma.mma_async."


@dataclass(frozen=True)
class Finding:
    """A fault that a text shows without being run: its line, and what is wrong."""

    line: int
    what: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.what}"


def findings(cuda: str) -> tuple[Finding, ...]:
    """The faults of the asm statements of a CUDA text, in its order."""
    return tuple(Finding(asm.line, what) for asm in statements(cuda) for what in (*movable(asm), *operands(asm)))


def instructions(asm: Asm) -> Iterator[tuple[str, str]]:
    """The names of an asm statement's instructions, each with its operands as they stand; guards and declarations left out."""
    for piece in pieces(asm.ptx):
        name, _, rest = re.sub(r"^@!?\w+\s+", "", piece).partition(" ")
        if name not in ("{", "}", ";", ".reg") and not name.endswith(":"):
            yield name, rest


def movable(asm: Asm) -> Iterator[str]:
    """The faults that let the compiler move an asm statement whose instructions must stay."""
    for name, _ in instructions(asm):
        if FREE.match(name):
            continue
        if not asm.volatile:
            yield f"`{name}` in asm without volatile: the compiler may move it, join it with its like or drop it"
        if "memory" not in asm.clobbers and not ORDERED.match(name):
            yield f'`{name}` in asm without the "memory" clobber: the compiler may keep values of memory over it'


def operands(asm: Asm) -> Iterator[str]:
    """The faults of an asm statement's constraints: operands that are read or written, and said otherwise."""
    written: set[int] = set()
    for name, rest in instructions(asm):
        results, sources = accessed(name, rest)
        for i, (constraint, expression) in enumerate(asm.operands):
            if i in sources and constraint.startswith("=") and i not in written:
                yield f'`{name}` reads %{i}, "{constraint}"{expression}, which has no value yet: "+{constraint.lstrip("=&")}"'
            if i in results and constraint[0] not in "=+":
                yield f'`{name}` writes %{i}, the input "{constraint}"{expression}: an output, "=" or "+"'
        written.update(results)
    for i, (constraint, expression) in enumerate(asm.operands):
        if constraint.startswith("=") and i not in written:
            yield f'no instruction writes %{i}, "{constraint}"{expression}, which the asm gives as a result'


def accessed(name: str, rest: str) -> tuple[list[int], list[int]]:
    """The operands, by number, that an instruction writes, and those that it reads."""
    first, *others = cut(rest, ",")
    if NO_RESULT.match(name) or first.strip().startswith("["):
        return [], numbers(rest)
    return numbers(first), numbers(rest if name.startswith(ACCUMULATES) else ",".join(others))


def numbers(text: str) -> list[int]:
    """The numbers of the operands that a piece of PTX names, without repetition."""
    return [*dict.fromkeys(int(n) for n in re.findall(r"(?<!%)%(\d+)", text))]
