"""Stands in for HostKernel in emulate(): a launch is a process for another processor, under qemu."""

import ctypes
import shutil
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from flashgen.emulate import EmulationFault, build
from flashgen.emulate.memory import Watched
from flashgen.emulate.translate import translate

COMPILER, QEMU, LIBRARIES = "aarch64-linux-gnu-g++", "qemu-aarch64", "/usr/aarch64-linux-gnu"
OPTIONS = [o for o in build.OPTIONS if o != "-march=native"]
KERNEL_OPTIONS = [o for o in build.KERNEL_OPTIONS if o != "-shared"]


def available() -> bool:
    return bool(shutil.which(COMPILER) and shutil.which(QEMU))


def compile_to(output: Path, text: Path, *arguments: str) -> None:
    command = [COMPILER, *OPTIONS, "-O1", f"-I{build.HOST}", "-x", "c++", str(text), "-x", "none", *arguments, "-o", str(output)]
    subprocess.run(command, check=True)


class CrossKernel:
    """The programs lie in `folder`, with the emulator itself as machine.o."""

    folder: Path

    def __init__(self, text: str, entry: str, name: str):
        self.entry, self.program = entry, self.folder / build.digest(text)
        if not self.program.exists():
            source = self.program.with_suffix(".cpp")
            source.write_text(translate(text, name).text)
            compile_to(self.program, source, *KERNEL_OPTIONS, str(self.folder / "machine.o"))

    def launch(self, grid, block, shared_bytes, params, seed, _checks, _regions, arrays, number):
        sizes = (*((grid,) if isinstance(grid, int) else grid), 1, 1)[:3]
        memory = {name: np.frombuffer((ctypes.c_char * x.nbytes).from_address(x.begin), np.uint8) for name, x in arrays.items()}
        data = sized(self.entry.encode() + b"\0") + sized(params.tobytes())
        data += numbers(*sizes, block, 1, 1, shared_bytes, seed, number, len(arrays))
        for name, x in arrays.items():
            data += (
                numbers(x.begin % 16, x.use != "fill")
                + sized(name.encode() + b"\0")
                + sized(memory[name].tobytes())
                + sized(x.shadow.tobytes())
            )
        found = pointers(params.tobytes(), arrays)
        data += numbers(len(found), *(n for one in found for n in one))
        taken, left = self.folder / "taken", self.folder / "left"
        taken.write_bytes(data)
        done = subprocess.run([QEMU, "-L", LIBRARIES, str(self.program), str(taken), str(left)], check=True, capture_output=True, text=True)
        if done.stdout:
            raise EmulationFault(done.stdout)
        at, result = 0, np.fromfile(left, np.uint8)
        for name, x in arrays.items():
            for to in (memory[name], x.shadow):
                to[...] = result[at : at + to.size]
                at += to.size


def numbers(*all_of_them: int) -> bytes:
    return struct.pack(f"<{len(all_of_them)}Q", *all_of_them)


def sized(data: bytes) -> bytes:
    return numbers(len(data)) + data


def pointers(params: bytes, arrays: Mapping[str, Watched]) -> list[tuple[int, int, int]]:
    """Every word that is an address in one of the arrays: where it stands, which array, how far in."""
    words = np.frombuffer(params[: len(params) // 8 * 8], np.uint64).tolist()
    spans = [(x.begin, x.begin + x.nbytes) for x in arrays.values()]
    return [(8 * at, i, word - begin) for at, word in enumerate(words) for i, (begin, end) in enumerate(spans) if begin <= word < end]
