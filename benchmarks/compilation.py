"""Compiles the masks of flashgen.bench.masks and prints seconds and spills, head dims 64 and 128. Needs NVRTC and no GPU.

    python benchmarks/compilation.py                      # a table to the terminal, the slowest last
    python benchmarks/compilation.py --arch sm_80

Seconds of a CPU core: from the spec to the text, and from the text to the cubin. Registers a thread, and bytes that it spills.
"""

import argparse
import time
from typing import NamedTuple

from flashgen.bench.masks import ROWS
from flashgen.plan import plan
from flashgen.render import render
from flashgen.runtime import nvrtc


class Compiled(NamedTuple):
    """The kernels of a mask at a head dim."""

    text_seconds: float
    cubin_seconds: float
    registers: int
    spill_bytes: int
    mask: str


def compiled(mask: str, head_dim: int, arch: str) -> Compiled:
    """Plans and compiles a row. Raises CompileError."""
    begin = time.process_time()
    source = render(plan(ROWS[mask].spec(head_dim), arch))
    between = time.process_time()
    binary = nvrtc.compile(source)
    end = time.process_time()
    return Compiled(between - begin, end - between, binary.registers, binary.spill_bytes, f"{mask}, head dim {head_dim}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="MASK")
    asked = parser.parse_args()
    found = [compiled(mask, head_dim, asked.arch) for mask in asked.rows for head_dim in (64, 128)]
    print(f"{asked.arch:36}{'text, s':>10}{'cubin, s':>10}{'registers':>11}{'spilled':>9}")
    for one in sorted(found, key=lambda one: one.cubin_seconds):
        print(f"{one.mask:36}{one.text_seconds:10.2f}{one.cubin_seconds:10.2f}{one.registers:11}{one.spill_bytes:9}")


if __name__ == "__main__":
    main()
