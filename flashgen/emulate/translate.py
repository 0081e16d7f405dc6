"""CUDA text to C++ for this machine: every asm statement becomes a call of that instruction's twin in host/ptx.hpp."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flashgen.emulate.asm import Asm, Operand, cut, pieces, statements
from flashgen.emulate.series import with_series
from flashgen.emulate.types import with_types
from flashgen.errors import BackendError

HOST_FILE = """\
#include "ptx.hpp"
namespace cuda_on_host::builtins::kernel {{   // inside builtins: their names win over the C library's
#line 1 "{name}"
{text}
{bounds}}}
namespace cuda_on_host {{
const Entry entries[] = {{ {entries}, {{}} }};
}}
"""
REGISTERS = {".pred": "bool", ".b32": "std::uint32_t", ".u32": "std::uint32_t", ".b64": "std::uint64_t", ".f32": "float"}
ENTRY = re.compile(r'extern "C" __global__ void (?:__cluster_dims__\(\d+, 1, 1\) )?(?:__launch_bounds__\((.*)\) )?(\w+)\(')
PARAMETER = re.compile(r"const __grid_constant__ (\w+) (\w+)")  # nobody copies it
SHARED_ARRAY = re.compile(r"extern __shared__ (?:__align__\(\d+\) )?[\w ]+ (\w+)\[\];")


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
    cuda = with_series(cuda)
    instructions: list[Instruction] = []
    parts, at = [], 0
    for asm in statements(cuda):
        calls = " ".join(calls_of(asm, instructions))
        parts += [cuda[at : asm.begin], f"{{ {calls} }}", "\n" * cuda.count("\n", asm.begin, asm.end)]
        at = asm.end
    text = SHARED_ARRAY.sub(r"::cuda_on_host::SharedArray \1;", "".join(parts) + cuda[at:])
    text = with_types(PARAMETER.sub(r"const \1& \2", text))
    kernels = ENTRY.findall(cuda)
    bounds = "".join(f"constexpr ::cuda_on_host::LaunchBounds bounds_of_{kernel}{{{said}}};\n" for said, kernel in kernels)
    entries = ", ".join(f'entry<&builtins::kernel::{k}>("{k}", builtins::kernel::bounds_of_{k})' for _, k in kernels)
    return HostText(HOST_FILE.format(name=name, text=text, bounds=bounds, entries=entries), tuple(instructions))


def calls_of(asm: Asm, instructions: list[Instruction]) -> Iterator[str]:
    """An asm statement as C++ statements: blocks, labels, predicates and branches map onto C++'s own."""
    for piece in pieces(asm.ptx):
        if piece in ("{", "}", ";"):
            yield piece
        else:
            yield f"{piece} ;" if piece.endswith(":") else call_of(piece, asm, instructions)


def call_of(one: str, asm: Asm, instructions: list[Instruction]) -> str:
    """The C++ statement of one PTX instruction, which is added to `instructions`."""
    if guard := re.match(r"@(!?)(\w+)\s+", one):
        return f"if ({guard[1]}{guard[2]}) {call_of(one[guard.end() :], asm, instructions)}"
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
    instructions.append(Instruction(twin, name, asm.line))
    return f"::cuda_on_host::ptx::{twin}{f'<{shape[1]}>' if shape else ''}({', '.join(arguments(rest, asm.operands))});"


def arguments(text: str, operands: Sequence[Operand]) -> Iterator[str]:
    """The C++ expressions of an instruction's operands."""
    for operand in (o.strip() for o in cut(text, ",")):
        if operand.startswith("["):  # an address, perhaps with coordinates
            yield from arguments(operand[1:-1], operands)
        elif operand.startswith("{"):
            yield registers([_of_braces(o.strip(), operands) for o in cut(operand[1:-1], ",")])
        elif operand.startswith("%%"):  # a special register
            yield f"::cuda_on_host::ptx::{operand[2:]}()"
        elif operand.startswith("%"):
            constraint, expression = operands[int(operand[1:])]
            element = constraint[0] in "=+" and "[" in expression  # perhaps of an array in global memory
            yield f"::cuda_on_host::result{expression}" if element else expression
        elif operand not in ("", "_"):
            yield operand


def _of_braces(one: str, operands: Sequence[Operand]) -> Operand:
    """An operand by number, or a constant."""
    return operands[int(one[1:])] if one.startswith("%") else Operand("n", one)


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
