"""The asm statements of a CUDA text: their PTX, their operands, and whether the compiler may move them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from flashgen.errors import BackendError

STATEMENT = re.compile(r"\basm\s*(volatile\b)?\s*\(")
STRING = r'"((?:[^"\\]|\\.)*)"'


class Operand(NamedTuple):
    """An operand of an asm statement: `"=r"(x)` as "=r" and "(x)"."""

    constraint: str
    expression: str


@dataclass(frozen=True)
class Asm:
    """An asm statement: `begin` and `end` are its place in the text, its semicolon included, `line` that of its first word."""

    begin: int
    end: int
    line: int
    ptx: str
    operands: tuple[Operand, ...]
    volatile: bool
    clobbers: tuple[str, ...]


def statements(cuda: str) -> Iterator[Asm]:
    """The asm statements of a CUDA text, in its order."""
    for match in STATEMENT.finditer(cuda):
        closing = closing_parenthesis(cuda, match.end() - 1)
        template, outputs, inputs, clobbers, *_ = [*cut(cuda[match.end() : closing], ":"), "", "", ""]
        yield Asm(
            begin=match.start(),
            end=cuda.index(";", closing) + 1,
            line=cuda.count("\n", 0, match.start()) + 1,
            ptx="".join(re.findall(STRING, template)).replace("\\n", " ").replace("\\t", " "),
            operands=(*operands_of(outputs), *operands_of(inputs)),
            volatile=bool(match[1]),
            clobbers=tuple(re.findall(STRING, clobbers)),
        )


def pieces(ptx: str) -> Iterator[str]:
    """The parts of PTX, one after another: `{`, `}`, `;`, a label as `NAME:`, an instruction without its semicolon."""
    while ptx := ptx.strip():
        if ptx[0] in "{};":
            yield ptx[0]
            ptx = ptx[1:]
        elif label := re.match(r"\w+:(?!:)", ptx):
            yield label[0]
            ptx = ptx[label.end() :]
        else:
            one, _, ptx = ptx.partition(";")
            yield one.strip()


def operands_of(constraints: str) -> Iterator[Operand]:
    """The operands of one list of an asm statement: `"=r"(x), "l"(p)`."""
    for operand in cut(constraints, ","):
        if match := re.fullmatch(r'\s*"([^"]*)"\s*(\(.*\))\s*', operand, re.S):
            yield Operand(match[1], match[2])


def closing_parenthesis(text: str, at: int) -> int:
    """Index of the parenthesis that closes the one at `at`, strings skipped."""
    depth = 0
    for m in re.compile(r'"(?:[^"\\]|\\.)*"|[()]').finditer(text, at):
        depth += {"(": 1, ")": -1}.get(m[0], 0)
        if depth == 0:
            return m.start()
    raise BackendError(f"an asm statement with no closing parenthesis: {text[at : at + 60]}")


def cut(text: str, by: str) -> list[str]:
    """The parts of a text between `by` at top level, not inside strings or brackets; `::` has an empty part between, as asm has it."""
    parts, depth, start = [], 0, 0
    for m in re.compile(r'"(?:[^"\\]|\\.)*"|[][(){},:]').finditer(text):
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(m[0], 0)
        if m[0] == by and depth == 0:
            parts.append(text[start : m.start()])
            start = m.end()
    return [*parts, text[start:]]
