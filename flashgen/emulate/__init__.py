"""Runs the emitted CUDA on the CPU: all its threads, barriers and asynchronous copies, under a race checker.

>>> o = emulate(program, render(program), q, k, v, seed=3)["o"]

The seam is the asm statement: each becomes a call of that instruction's twin in `host/ptx.hpp`. Pointers and arrays get types of their own
(`types.py`), which tell of loads and stores and test every index; nothing else of the text changes. A thread is a fiber, TMA and tensor
cores are engines, and the seed orders whatever a GPU may order freely. Eight blocks at a time are spread over the cores. At atomics they
take turns in an order under the seed, so a seed brings about the same on any number of cores. Data in flight is NaN. The checker judges
order by barriers, not by what happened to run first: a missing wait shows under every seed.

Built for the processor it runs on by g++ or clang++. x86-64 with g++ 12 and clang++ 14 is what CI runs; for aarch64 a test builds it with
Debian's cross g++ 12 and runs kernels of each kind under qemu-user, where those are installed: no aarch64 machine was tried.

Judged: races in shared memory, of a cluster's blocks as of warps, and of lanes where they store; races in global memory between blocks as
between warps of one, where a fence and an atomic hand on what a block knows; reads and atomics of outputs and scratch memory before they
are written, in bulk copies excepted; memory touched before the wait for the kernel ahead, by kernels that start early; proxy fences,
mbarriers and named barriers, registers that a wgmma still uses, setmaxnreg and launch bounds, divergence, work left in flight, alignment,
bounds of shared memory, global memory and local arrays, outputs that are not written or written around.

Judged without running, by `findings`: asm statements without the volatile, the clobber or the "+" that their instructions need;
by `int_products` and `narrowings`, 32 bits where an address needs 64.

Not judged: what ptxas does, constraint letters of asm, races between lanes of one warp in global memory and within 4 bytes of shared
memory, proxy fences in global memory, the hardware's own rounding, speed. Refused as not modelled: descriptor base offsets, negated
operands, unswizzled operands dense along m or n, shuffles of some lanes. docs/emulator.md has the faults that others reported.
"""

from flashgen.emulate.addresses import int_products, narrowings
from flashgen.emulate.backward import emulate_backward
from flashgen.emulate.lint import findings
from flashgen.emulate.machine import HostKernel
from flashgen.emulate.report import EmulationFault
from flashgen.emulate.run import emulate
from flashgen.emulate.tensor_map import tensor_map
from flashgen.emulate.translate import MissingTwin
from flashgen.interpret import Given

__all__ = [
    "EmulationFault",
    "Given",
    "HostKernel",
    "MissingTwin",
    "emulate",
    "emulate_backward",
    "findings",
    "int_products",
    "narrowings",
    "tensor_map",
]
