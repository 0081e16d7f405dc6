"""GPU architectures, one row each: the limits that a plan must fit, and the rates that its cost is made of.

Rates are per multiprocessor and clock, dense, float32 accumulation; sources: CUDA programming guide, table of throughput; tuning guides.
"""

from dataclasses import dataclass
from typing import Literal

from flashgen.errors import PlanError


@dataclass(frozen=True)
class Arch:
    """An architecture as the compiler names it.

    >>> by_name("sm_90a").shared_bytes
    232448
    """

    name: str
    capability: int  # compute capability, ten times; 0: no GPU
    engines: tuple[str, ...]  # that multiply there, the fastest first: wgmma, mma_sync; numpy on the CPU
    shared_bytes: int  # a block may have
    multiprocessor_shared_bytes: int
    multiprocessors: int  # of the common card
    clock_ghz: float
    mma_flops: int  # 16-bit tensor-core FLOP
    exp2: int  # results of the special function unit
    l2_bytes: int
    dram_gbytes: float  # per second
    registers: int = 65536
    threads: int = 2048  # resident on a multiprocessor
    tanh: float = 2.0**-11  # relative error of tanh.approx: what PTX promises, or what was measured

    @property
    def on_cpu(self) -> bool:
        """True of the CPU, where the interpreter runs plans."""
        return not self.capability

    @property
    def early(self) -> bool:
        """True if a kernel may start before the one ahead of it ends: programmatic dependent launch, from compute capability 9.0 on."""
        return self.capability >= 90

    @property
    def cluster(self) -> int:
        """The most blocks that any GPU of it starts together, with each other's shared memory in reach; 1 before compute capability 9.0."""
        return 8 if self.capability >= 90 else 1

    @property
    def at_once(self) -> Literal["one", "four"]:
        """The numbers that a lane adds to memory, or stores of a fragment, at once: red.v4 and stmatrix from compute capability 9.0 on."""
        return "four" if self.capability >= 90 else "one"


KIB = 1024
_ROWS = (
    Arch("sm_80", 80, ("mma_sync",), 163 * KIB, 164 * KIB, 108, 1.41, 2048, 16, 40 << 20, 1555),
    Arch("sm_86", 86, ("mma_sync",), 99 * KIB, 100 * KIB, 82, 1.70, 512, 16, 6 << 20, 936, threads=1536),
    Arch("sm_89", 89, ("mma_sync",), 99 * KIB, 100 * KIB, 128, 2.52, 512, 16, 72 << 20, 1008, threads=1536),
    Arch("sm_90", 90, ("mma_sync",), 227 * KIB, 228 * KIB, 132, 1.76, 2048, 16, 50 << 20, 3350, tanh=2.0**-16),
    Arch("sm_90a", 90, ("wgmma", "mma_sync"), 227 * KIB, 228 * KIB, 132, 1.76, 4096, 16, 50 << 20, 3350, tanh=2.0**-16),
    Arch("sm_100", 100, ("mma_sync",), 227 * KIB, 228 * KIB, 148, 1.85, 2048, 16, 126 << 20, 8000),
    Arch("sm_100a", 100, ("mma_sync",), 227 * KIB, 228 * KIB, 148, 1.85, 2048, 16, 126 << 20, 8000),
    Arch("sm_120", 120, ("mma_sync",), 99 * KIB, 100 * KIB, 170, 2.40, 512, 16, 96 << 20, 1792, threads=1536),
    Arch("host", 0, ("numpy",), 1 << 30, 1 << 30, 1, 3.0, 32, 1, 32 << 20, 20),
)
ARCHES = {row.name: row for row in _ROWS}
DEFAULT = "sm_90a"


def by_name(name: str) -> Arch:
    """The row of a name, or a PlanError that lists them."""
    if name not in ARCHES:
        raise PlanError(f"unknown arch {name!r}: flashgen has {', '.join(ARCHES)}")
    return ARCHES[name]


def of_capability(major: int, minor: int) -> Arch:
    """The best arch that a device of this compute capability runs: its own where flashgen has that, else one whose binaries run.

    >>> of_capability(10, 3).name
    'sm_100'
    """
    for name in (f"sm_{major}{minor}a", f"sm_{major}{minor}", f"sm_{major}0"):
        if name in ARCHES:
            return ARCHES[name]
    served = ", ".join(name for name, row in ARCHES.items() if row.capability)
    which = "too old" if (major, minor) < (8, 0) else "newer than this flashgen"
    raise PlanError(
        f"no kernel for compute capability {major}.{minor}, {which}: it has {served}, whose binaries run on their major version alone. "
        "The interpreter runs anywhere: backend='interpreter'"
    )
