"""`flashgen emulate`: a CUDA file that somebody wrote by hand, on the CPU under the race checker."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashgen.cli.errors import CommandError
from flashgen.cli.terminal import console, plain
from flashgen.emulate import EmulationFault
from flashgen.emulate.launch import LaunchFile, load, run


@dataclass(frozen=True)
class Ran:
    """A launch under one seed, and what was found; empty if nothing."""

    seed: int
    fault: str
    line: int  # of the CUDA file, 0 if unknown


def emulate(cuda: Path, launch: Path, seeds: int) -> tuple[LaunchFile, list[Ran]]:
    """Runs the kernel under seeds from 0 on, up to the first fault. Raises CommandError, CompileError, SpecError, BackendError."""
    for path in (cuda, launch):
        if not path.is_file():
            raise CommandError(f"no file {path}: give the CUDA file, and with --launch the TOML file that docs/emulator.md explains")
    said = load(launch)
    return said, list(_until_one_fails(cuda, said, seeds))


def _until_one_fails(cuda: Path, launch: LaunchFile, seeds: int) -> Iterator[Ran]:
    for seed in range(seeds):
        try:
            run(cuda, launch, seed)
        except EmulationFault as fault:
            yield Ran(seed, str(fault), fault.line)
            return
        yield Ran(seed, "", 0)


def to_json(launch: LaunchFile, ran: list[Ran]) -> dict[str, Any]:
    """The runs as `--json` prints them."""
    return {"kernel": launch.entry, "runs": [vars(one) for one in ran]}


def report(launch: LaunchFile, ran: list[Ran]) -> None:
    """A line that tells what was found, or that nothing was."""
    out = console()
    blocks = " x ".join(map(str, launch.grid))
    out.print(*plain([f"{launch.entry}: {blocks} blocks of {launch.block} threads, under {len(ran)} seed{'s' if len(ran) > 1 else ''}"]))
    if ran[-1].fault:
        out.print(*plain([ran[-1].fault]))
        return
    checked = [f"{name} = {array['equals']}" for name, array in launch.arrays.items() if "equals" in array]
    out.print(*plain(["no fault found" + (f"; {', '.join(checked)}" if checked else "")]))
