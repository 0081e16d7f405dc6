"""The machine code of a kernel, and the instructions of its loop; `flashgen.plan.engines.instructions` foretells them."""

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from flashgen.errors import BackendError
from flashgen.expr import Instructions
from flashgen.plan import Program
from flashgen.runtime.nvrtc import Binary

_LABEL = re.compile(r"\s*(\.L_x_\w+):")
_OPERATION = re.compile(r"\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?(\w+).*?;")
_BRANCH = re.compile(r"\bBRA\b.*?(\.L_x_\w+)")
_MULTIPLIES = ("FFMA", "FMUL", "FADD")


def disassemble(binary: Binary) -> str:
    """The SASS of a cubin, by nvdisasm. Raises BackendError where there is none."""
    tool = disassembler()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(binary.cubin)
        done = subprocess.run([tool, "--print-code", str(path)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BackendError(f"{tool} failed: {done.stderr.strip()}")
    return done.stdout


def disassembler() -> str:
    """The path of nvdisasm. Raises BackendError where there is none."""
    if found := shutil.which("nvdisasm"):
        return found
    try:
        from cuda import pathfinder

        if found := pathfinder.find_nvidia_binary_utility("nvdisasm"):
            return str(found)
    except (ImportError, AttributeError):  # AttributeError: pathfinder before 1.3
        pass
    raise BackendError("no nvdisasm here: pip install nvidia-cuda-nvdisasm, or put the toolkit's bin/ on PATH")


def loops(sass: str) -> list[list[str]]:
    """The bodies of all loops, as lists of operations, the shortest first."""
    labels: dict[str, int] = {}
    operations: list[str] = []
    found: list[tuple[int, int]] = []
    for line in sass.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(operations)
        elif code := _OPERATION.match(line):
            operations.append(code[1])
            target = _BRANCH.search(line)
            if target and target[1] in labels:
                found.append((labels[target[1]], len(operations)))
    return sorted((operations[begin:end] for begin, end in found), key=len)


def key_tile(sass: str, program: Program) -> Instructions:
    """The instructions of a thread for a key tile: those of the shortest loop with both products, the one without a mask if there is one.

    >>> key_tile(disassemble(compile(render(chosen))), chosen)

    `other` counts both ways of a branch.
    """
    tile = program.attention.tile
    products = tile.qk_columns // 16 + tile.block_n // 16 + program.holes.score.begins_by_product
    body = next(body for body in loops(sass) if body.count("HGMMA") == products)
    special, multiply = body.count("MUFU"), sum(map(body.count, _MULTIPLIES))
    return Instructions(special, multiply, len(body) - special - multiply)
