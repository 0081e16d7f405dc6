"""The rules by which a CUDA text runs on the emulator, each with the line that breaks it and how to write it."""

import re
from collections.abc import Iterator

from flashgen.emulate.asm import pieces, statements
from flashgen.emulate.translate import ENTRY, REGISTERS
from flashgen.errors import CompileError

KERNEL = 'extern "C" __global__ void __launch_bounds__(128) NAME(const __grid_constant__ Params p)'
ONE_STRUCT = re.compile(r"const __grid_constant__ \w+ \w+\s*\)")
LINES = {  # what a line must not have: why, and what to write
    r"#\s*include\b": ("an #include: the text stands alone", "types and wrappers in the file: using u32 = unsigned int;"),
    r"(?<!extern )\b__shared__\b": (
        "static shared memory: shared memory is dynamic, one array, reached by 32-bit address",
        "extern __shared__ __align__(1024) unsigned char memory[]; const u32 shared = __cvta_generic_to_shared(memory);",
    ),
    r"<<<": ("a launch: the file holds device code alone", "the launch in the --launch file: entry, grid, block, params"),
    r"\bint\s+main\s*\(": ("host code: the file holds device code alone", "the launch in the --launch file: entry, grid, block, params"),
    r"\bcuda(?:Malloc|Memcpy|Launch|Free|Device)\w*\s*\(": ("host code: the file holds device code alone", "arrays in the --launch file"),
    r"\bcooperative_groups\b|\bcuda::": ("a library: the text stands alone", "the instructions themselves, as asm"),
    r"\basm\b[^;\n]*\"[^\"\n]*%\[": ("an asm operand by name", "operands by number: %0, %1"),
}  # fmt: skip


def broken(cuda: str, name: str) -> Iterator[str]:
    """Lines that tell what breaks the rules in a CUDA text, as "kernel.cu:12: what; write: how".

    >>> list(broken("#include <cuda_bf16.h>", "a.cu"))[0][:44]
    'a.cu:1: an #include: the text stands alone; '
    """
    code = re.sub(r"//.*", "", cuda)
    lines = code.splitlines()
    for pattern, (what, how) in LINES.items():
        yield from (f"{name}:{i}: {what}; write: {how}" for i, line in enumerate(lines, 1) if re.search(pattern, line))
    for found in re.finditer(r"__global__", code):
        line = code.count("\n", 0, found.start()) + 1
        start = code.rfind('extern "C"', max(0, found.start() - 20), found.start())
        match = ENTRY.match(code, start) if start >= 0 else None
        if not match:
            yield f"{name}:{line}: a kernel that the emulator cannot find by name; write on one line: {KERNEL}"
        elif not ONE_STRUCT.match(code, match.end()):
            yield f"{name}:{line}: the parameters of kernel {match[2]}: one struct, by value; write: {KERNEL}"
    if not ENTRY.search(code):
        yield f"{name}: no kernel; write: {KERNEL}"
    for asm in statements(code):
        for piece in pieces(asm.ptx):
            if piece.startswith(".reg ") and (kind := piece.split()[1]) not in REGISTERS:
                yield f"{name}:{asm.line}: a register of {kind} in an asm; write: an operand, or one of {', '.join(REGISTERS)}"


def check(cuda: str, name: str) -> None:
    """Raises CompileError with every rule that a text breaks."""
    if faults := sorted(broken(cuda, name), key=lambda fault: [int(n) for n in re.findall(r":(\d+):", fault[:200])[:1]]):
        raise CompileError("\n".join(faults))
