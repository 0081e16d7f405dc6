"""`flashgen build`: a folder an architecture with text, cubin, header and plan."""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from flashgen.arch import by_name
from flashgen.cli.errors import CommandError, unwritable
from flashgen.cli.terminal import console, plain, table
from flashgen.plan import Program, plan
from flashgen.render import Source, render
from flashgen.render.header import header
from flashgen.render.launcher import launcher
from flashgen.runtime import device, nvrtc
from flashgen.runtime.nvrtc import Binary
from flashgen.runtime.tuned import planned, planned_backward
from flashgen.spec import Spec


@dataclass(frozen=True)
class Built:
    """One kernel that was written."""

    arch: str
    cubin: Path
    registers: int  # a thread
    spill_bytes: int  # a thread
    shared_bytes: int  # a block
    seconds: float  # of compilation
    tuned: bool  # its plan is what `flashgen tune` kept for this card, not the cost model's choice
    part: str = "kernel"  # or backward

    def to_json(self) -> dict[str, Any]:
        """The kernel as `--json` prints it."""
        return {**vars(self), "cubin": str(self.cubin)}


def build(spec: Spec, archs: Sequence[str], out: Path) -> list[Built]:
    """Writes out/<name>/<arch>/ with kernel.cu, kernel.cubin, kernel.h, kernel.c and plan.json for each architecture; of a spec with
    `backward: true` the same of the backward, and backward.json; of one without, those of an earlier build are removed.

    All plans are made, and all folders looked at, before anything is compiled. Raises CommandError, PlanError, CompileError, BackendError.
    """
    plans = [(part, chosen) for arch in archs for part, chosen in _plans(spec, arch)]
    for _, chosen in plans:
        _check_owner(spec, out / spec.name / chosen.arch.name)
    stale = [path for arch in archs if not spec.backward for path in _written(out / spec.name / by_name(arch).name, "backward")]
    errors = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    built = []
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as progress:
        for part, chosen in plans:
            task = progress.add_task(f"{spec.name} for {chosen.arch.name}, {part}", total=1)
            source = render(chosen)
            binary = nvrtc.compile(source)
            built.append(_write(spec, part, chosen, (source, binary), out / spec.name / chosen.arch.name))
            progress.advance(task)
    _remove(stale)
    return built


def _plans(spec: Spec, arch: str) -> Iterator[tuple[str, Program]]:
    """The plans for an architecture, each with the name of its files."""
    yield "kernel", kernel_plan(spec, arch)
    if spec.backward:
        yield "backward", planned_backward(spec, by_name(arch))


def kernel_plan(spec: Spec, arch: str) -> Program:
    """The plan that a call runs here: as tuned for this card, else the cost model's. Raises CommandError for the interpreter, PlanError."""
    chosen = planned(spec, by_name(arch))
    if not chosen.arguments:
        raise CommandError(f"{arch} is the interpreter, which runs the plan itself: there is no kernel. Give another --arch, as sm_90a")
    return chosen


def _file(spec: Spec, folder: Path) -> str | None:
    """The path of the spec from a folder of its kernel; None for one without a file. (A plan may carry an equal spec of another file.)"""
    return next((os.path.relpath(place.file, folder) for place in spec.positions.values()), None)


def _check_owner(spec: Spec, folder: Path) -> None:
    """Raises CommandError where the folder holds the kernel of another spec, whose file is still there."""
    if (built := _built(folder, "kernel")) is None:  # nothing that could be lost
        return
    other, theirs = built
    mine = _file(spec, folder)
    if other and other != mine and theirs != spec.to_json() and (folder / other).is_file():
        there = os.path.normpath(folder / other)
        raise CommandError(f"{folder} holds the kernel of {there}, another spec: give this one another name:, or another --out")


def _built(folder: Path, part: str) -> tuple[str | None, Any] | None:
    """The file and the spec of a part that was built into a folder; None if none was."""
    try:
        built = json.loads((folder / _files(part)[-1]).read_bytes())
        return built["spec_file"], built["spec"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _files(part: str) -> tuple[str, ...]:
    """The names of a part's files, the plan's last."""
    return *(f"{part}.{suffix}" for suffix in ("cu", "cubin", "h", "c")), f"{'plan' if part == 'kernel' else part}.json"


def _written(folder: Path, part: str) -> list[Path]:
    """The files of a part that was built into a folder."""
    return [folder / name for name in _files(part)] if _built(folder, part) else []


def _remove(files: Sequence[Path]) -> None:
    try:
        for path in files:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise unwritable(error.filename, error) from None


def _write(spec: Spec, part: str, chosen: Program, made: tuple[Source, Binary], folder: Path) -> Built:
    source, binary = made
    contents = (
        source.text.encode(),
        binary.cubin,
        header(chosen, source, part).encode(),
        launcher(chosen, source, part).encode(),
        json.dumps({"spec_file": _file(spec, folder), **chosen.to_json()}, indent=2).encode(),
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in zip(_files(part), contents, strict=True):
            (folder / name).write_bytes(content)
    except OSError as error:
        raise unwritable(error.filename, error) from None
    shared = max(kernel.smem.bytes for kernel in chosen.kernels) + binary.shared_bytes
    tuned = part == "kernel" and chosen.digest != plan(chosen.spec, chosen.arch).digest
    return Built(
        arch=chosen.arch.name,
        cubin=folder / f"{part}.cubin",
        registers=binary.registers,
        spill_bytes=binary.spill_bytes,
        shared_bytes=shared,
        seconds=round(binary.seconds, 3),
        tuned=tuned,
        part=part,
    )


def report(built: Sequence[Built]) -> None:
    """A table of what was written."""
    rows = table("arch", "", "registers", "spilled", "shared", "seconds", "folder", right=("registers", "spilled", "shared", "seconds"))
    for made in built:
        rows.add_row(
            *plain((made.arch, made.part, made.registers, made.spill_bytes, made.shared_bytes, f"{made.seconds:.1f}", made.cubin.parent))
        )
    out = console()
    out.print(rows)
    for made in built:
        if made.tuned:
            out.print(*plain([f"{made.arch}: the plan that flashgen tune found fastest on {device.current().name}, not the cost model's"]))
