"""Tells what the machine found as a good compiler would: what happened, where in the kernel, and what to look at."""

import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from flashgen.errors import FlashgenError

KERNEL = "cuda_on_host::builtins::kernel::"  # where translate.py puts the text
WIDTH = 130  # of a line shown


class EmulationFault(FlashgenError):  # noqa: N818
    """A fault that the emulator found while a kernel ran: a race, a deadlock, a broken rule.

    `what` is the finding, `line` the line of the kernel (0: unknown), `block` and `thread` who met it (thread -1: an asynchronous unit).
    """

    def __init__(self, what: str, text: str = "", line: int = 0, block: int = 0, thread: int = -1):
        self.what, self.line, self.block, self.thread = what, line, block, thread
        super().__init__(text or what)


@dataclass(frozen=True)
class Frame:
    """A line of the kernel and the function that it is in."""

    line: int
    function: str


@dataclass(frozen=True)
class Finding:
    """A fault as the machine reports it; places are addresses in the kernel's library, 0 for none, and stand as `<1f3c>` in texts."""

    what: str
    hint: str
    place: int
    other: int
    block: int
    thread: int
    seed: int


def of_two_lines(finding: Finding, kernel: Path, name: str) -> bool:
    """True if the two places of a finding are different lines, as callers see them; False where nobody can tell."""
    frames = frames_of(kernel, [finding.place, finding.other], name)
    chains = [[frame.line for frame in frames.get(place, [])] for place in (finding.place, finding.other)]
    return all(chains) and chains[0] != chains[1]


def fault(finding: Finding, kernel: Path, name: str, source: str) -> EmulationFault:
    """The finding with lines of the kernel instead of addresses. `name` and `source` are the CUDA text's."""
    mentioned = {int(address, 16) for address in re.findall(r"<([0-9a-f]+)>", finding.what + finding.hint)}
    frames = frames_of(kernel, sorted({finding.place, finding.other, *mentioned} - {0}), name)

    def mention(match: re.Match[str]) -> str:
        chain = frames.get(int(match[1], 16), [])
        return f"{name}:{chain[0].line} in {chain[0].function}" if chain else "an unknown line"

    what, hint = (re.sub(r"<([0-9a-f]+)>", mention, text) for text in (finding.what, finding.hint))
    who = (
        f"thread {finding.thread} (warp {finding.thread // 32}, lane {finding.thread % 32})"
        if finding.thread >= 0
        else "asynchronous, issued here"
    )
    chain = frames.get(finding.place, [])
    where = (
        f"{name}:{chain[0].line}" if chain else f"{name}, unknown line (addr2line of binutils is not on PATH)" if not addr2line() else name
    )
    lines = [what, f"  --> {where}: block {finding.block}, {who}, seed {finding.seed}", *excerpt(chain, source)]
    if other := frames.get(finding.other):
        lines += [f"  the other side, {name}:{other[0].line}", *excerpt(other, source)]
    if hint:
        lines.append(f"  look at: {hint}")
    return EmulationFault(what, "\n".join(lines), chain[0].line if chain else 0, finding.block, finding.thread)


def excerpt(chain: list[Frame], source: str) -> Iterable[str]:
    """The line, its function and the callers."""
    if not chain:
        return
    lines = source.splitlines()
    gutter = len(str(chain[0].line))
    text = lines[chain[0].line - 1].strip()
    yield f"  {chain[0].line} | {text if len(text) <= WIDTH else text[: WIDTH - 3] + '...'}"
    callers = [f"{f.function}:{f.line}" for f in chain[1:]]
    yield f"  {' ' * gutter} | in {chain[0].function}" + (f", called from {', '.join(callers)}" if callers else "")


def addr2line() -> str | None:
    """The path of addr2line of binutils or LLVM; None if neither is installed."""
    return shutil.which("addr2line") or shutil.which("llvm-addr2line")


def frames_of(kernel: Path, places: list[int], name: str) -> dict[int, list[Frame]]:
    """The frames of the CUDA text at each place, innermost first, without the wrappers of single instructions."""
    tool = addr2line()
    if not tool or not places:
        return {}
    addresses = [f"{place - 1:#x}" for place in places]  # a return address: the call lies before it
    printed = subprocess.run(
        [tool, "-a", "-i", "-f", "-C", "-e", str(kernel), *addresses], capture_output=True, text=True, check=True
    ).stdout
    frames: dict[int, list[Frame]] = {}
    for chunk in re.split(r"^0x", printed, flags=re.M)[1:]:
        address, *rest = chunk.splitlines()
        chain = []
        for function, place in zip(rest[::2], rest[1::2], strict=True):
            file, _, line = place.split(" ")[0].rpartition(":")
            if Path(file).name == name and line.isdecimal():
                chain.append(Frame(int(line), function.partition("(")[0].rpartition(KERNEL)[2]))
        outside = [frame for frame in chain if not frame.function.startswith("ptx::")]
        frames[int(address, 16) + 1] = outside or chain
    return frames
