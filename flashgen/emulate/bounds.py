"""Holds the promises of `__launch_bounds__` against the launch and the multiprocessor that it is for."""

from dataclasses import dataclass

from flashgen.arch import Arch
from flashgen.emulate.report import EmulationFault

RESERVED = 1 << 10  # bytes of shared memory that the system takes of each block


@dataclass(frozen=True)
class LaunchBounds:
    """A kernel's `__launch_bounds__`: at most so many threads of a block, 0 where it says nothing, at least so many blocks at once."""

    kernel: str
    threads: int
    blocks: int

    def judge(self, block: int, shared_bytes: int, arch: Arch | None) -> None:
        """Raises EmulationFault where a launch of blocks of so many threads, with so much shared memory each, breaks the promise."""
        if self.threads and block > self.threads:
            raise EmulationFault(
                f"{self.kernel} is launched with {block} threads, __launch_bounds__ promises at most {self.threads}\n"
                "  look at: the warps of the kernel; the driver refuses such a launch, and ptxas gave each thread the registers of fewer"
            )
        if not arch or self.blocks < 2:
            return
        for what, needed, there in (
            ("threads", block, arch.threads),
            ("bytes of shared memory", shared_bytes + RESERVED, arch.multiprocessor_shared_bytes),
        ):
            if self.blocks * needed > there:
                raise EmulationFault(
                    f"__launch_bounds__ of {self.kernel} promises {self.blocks} blocks at once, of {needed} {what} each; "
                    f"a multiprocessor of {arch.name} has {there}\n  look at: the memory map and the stages; ptxas spares registers in vain"
                )
