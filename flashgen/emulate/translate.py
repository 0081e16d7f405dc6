"""CUDA text to C++ for this machine: every asm statement becomes a call of that instruction's twin in host/ptx.hpp."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from flashgen.emulate.runs import with_runs
from flashgen.emulate.types import with_types
from flashgen.errors import BackendError

HOST_FILE = """\
#include "ptx.hpp"
namespace cuda_on_host::builtins::kernel {{   // inside builtins: their names win over the C library's
#line 1 "{name}"
{text}
}}
namespace cuda_on_host {{
const Entry entries[] = {{ {entries}, {{}} }};
}}
"""
REGISTERS = {".pred": "bool", ".b32": "std::uint32_t", ".u32": "std::uint32_t", ".b64": "std::uint64_t", ".f32": "float"}
STATEMENT = re.compile(r"\basm\s*(?:volatile\s*)?\(")
ENTRY = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\(.*\) )?(\w+)\(')
PARAMETER = re.compile(r"const __grid_constant__ (\w+) (\w+)")  # nobody copies it
SHARED_ARRAY = re.compile(r"extern __shared__ (?:__align__\(\d+\) )?[\w ]+ (\w+)\[\];")

Operand = tuple[str, str]  # constraint and expression of asm: ("=r", "(x)")


@dataclass(frozen=True)
class Instruction:
    """One use of a PTX instruction: the function that is its twin, its name in PTX, the line of the CUDA text."""

    twin: str
    ptx: str
    line: int


@dataclass(frozen=True)
class HostText:
    """A C++ translation unit, and the instructions that it needs twins of."""

    text: str
    instructions: tuple[Instruction, ...]


class MissingTwin(BackendError):  # noqa: N818
    """An instruction that the emulator does not know."""

    def __init__(self, instruction: Instruction, name: str):
        super().__init__(
            f"the emulator has no twin of `{instruction.ptx}`, used at {name}:{instruction.line}; "
            f"declare `{instruction.twin}` in flashgen/emulate/host/ptx.hpp"
        )


def translate(cuda: str, name: str) -> HostText:
    """The host's form of a self-contained CUDA text, all its kernels; `name` is what reports call the text.

    >>> translate('extern "C" __global__ void f(int n) { asm("bar.sync 0, 32;"); }', "f.cu").instructions
    (Instruction(twin='bar_sync', ptx='bar.sync', line=1),)
    """
    cuda = with_runs(cuda)
    instructions: list[Instruction] = []
    pieces, at = [], 0
    for match in STATEMENT.finditer(cuda):
        opening = match.end() - 1
        closing = closing_parenthesis(cuda, opening)
        line = cuda.count("\n", 0, match.start()) + 1
        calls = list(statements(cuda[opening + 1 : closing], line, instructions))
        pieces += [cuda[at : match.start()], "{ ", " ".join(calls), " }", "\n" * cuda.count("\n", match.start(), closing)]
        at = cuda.index(";", closing) + 1
    text = SHARED_ARRAY.sub(r"::cuda_on_host::SharedArray \1;", "".join(pieces) + cuda[at:])
    text = with_types(PARAMETER.sub(r"const \1& \2", text))
    entries = ", ".join(f'entry<&builtins::kernel::{entry}>("{entry}")' for entry in ENTRY.findall(cuda))
    return HostText(HOST_FILE.format(name=name, text=text, entries=entries), tuple(instructions))


def statements(asm: str, line: int, instructions: list[Instruction]) -> Iterator[str]:
    """The PTX of an asm statement, one C++ statement at a time: blocks, labels, predicates and branches map onto C++'s own."""
    template, outputs, inputs, *_ = [*split(asm, ":"), "", ""]
    operands = operands_of(outputs) + operands_of(inputs)
    ptx = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', template)).replace("\\n", " ").replace("\\t", " ")
    while ptx := ptx.strip():
        if ptx[0] in "{};":
            yield ptx[0]
            ptx = ptx[1:]
        elif label := re.match(r"(\w+):(?!:)", ptx):
            yield f"{label[1]}: ;"
            ptx = ptx[label.end() :]
        else:
            one, _, ptx = ptx.partition(";")
            yield statement(one.strip(), operands, line, instructions)


def statement(one: str, operands: list[Operand], line: int, instructions: list[Instruction]) -> str:
    if guard := re.match(r"@(!?)(\w+)\s+", one):
        return f"if ({guard[1]}{guard[2]}) {statement(one[guard.end() :], operands, line, instructions)}"
    name, _, rest = one.partition(" ")
    if name == ".reg":
        kind, variable = rest.split()
        return f"{REGISTERS[kind]} {variable};"
    if name == "bra":
        return f"goto {rest.strip()};"
    twin, shape = name, re.search(r"\.m64n(\d+)k(\d+)", name)
    if shape:
        twin = name.replace(shape[0], f".m64k{shape[2]}")
    twin = re.sub(r"\W+", "_", twin)
    instructions.append(Instruction(twin, name, line))
    return f"::cuda_on_host::ptx::{twin}{f'<{shape[1]}>' if shape else ''}({', '.join(arguments(rest, operands))});"


def arguments(text: str, operands: list[Operand]) -> Iterator[str]:
    for operand in (o.strip() for o in split(text, ",")):
        if operand.startswith("["):  # an address, perhaps with coordinates
            yield from arguments(operand[1:-1], operands)
        elif operand.startswith("{"):
            yield registers([operands[int(o.strip()[1:])] for o in split(operand[1:-1], ",")])
        elif operand.startswith("%%"):  # a special register
            yield f"::cuda_on_host::ptx::{operand[2:]}()"
        elif operand.startswith("%"):
            constraint, expression = operands[int(operand[1:])]
            element = constraint[0] in "=+" and "[" in expression  # perhaps of an array in global memory
            yield f"::cuda_on_host::result{expression}" if element else expression
        elif operand not in ("", "_"):
            yield operand


def registers(operands: list[Operand]) -> str:
    """`{%0, %1, ...}`: neighbours of one array go by address (wgmma keeps it), other outputs by reference, other inputs by value."""
    expressions = [expression for _, expression in operands]
    parts = [re.fullmatch(r"\((\w+)\[(\d+)\]\)", e) for e in expressions]
    arrays = [(p[1], int(p[2])) for p in parts if p]
    if len(arrays) == len(parts) and arrays == [(arrays[0][0], i) for i in range(len(arrays))]:
        return f"::cuda_on_host::ptx::neighbours<{len(arrays)}>({arrays[0][0]})"
    if operands[0][0].startswith(("=", "+")):
        return f"::cuda_on_host::ptx::references({', '.join(expressions)})"
    return "{" + ", ".join(expressions) + "}"


def operands_of(constraints: str) -> list[Operand]:
    """The operands of one list of asm: `"=r"(x), "l"(p)` as [("=r", "(x)"), ("l", "(p)")]."""
    found = [re.fullmatch(r'\s*"([^"]*)"\s*(\(.*\))\s*', o, re.S) for o in split(constraints, ",") if o.strip()]
    return [(match[1], match[2]) for match in found if match]


def closing_parenthesis(text: str, at: int) -> int:
    """Index of the parenthesis that closes the one at `at`, strings skipped."""
    depth = 0
    for m in re.compile(r'"(?:[^"\\]|\\.)*"|[()]').finditer(text, at):
        depth += {"(": 1, ")": -1}.get(m[0], 0)
        if depth == 0:
            return m.start()
    raise BackendError(f"an asm statement with no closing parenthesis: {text[at : at + 60]}")


def split(text: str, by: str) -> list[str]:
    """The parts of a text between `by` at top level, not inside strings or brackets; `::` has an empty part between, as asm has it."""
    parts, depth, start = [], 0, 0
    for m in re.compile(r'"(?:[^"\\]|\\.)*"|[][(){},:]').finditer(text):
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(m[0], 0)
        if m[0] == by and depth == 0:
            parts.append(text[start : m.start()])
            start = m.end()
    return [*parts, text[start:]]
