"""`flashgen explain`: the plan and why, as data and as a page."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from flashgen.arch import Arch, by_name
from flashgen.cli.errors import unwritable
from flashgen.cli.gradients import BackwardWork, measure_backward
from flashgen.cli.picture import PLAIN_SYMBOLS, SYMBOLS, in_characters
from flashgen.cli.tensors import read_tensors
from flashgen.cli.terminal import console, drawn, plain, table
from flashgen.cli.work import Work, classes, measure, read_values
from flashgen.plan import Program, plan
from flashgen.plan.geometry import Sizes
from flashgen.plan.kernel import Region
from flashgen.plan.shares import Demands
from flashgen.render.describe import describe
from flashgen.runtime.arguments import check_values, checked_number
from flashgen.runtime.tuned import length_class, planned, planned_backward
from flashgen.spec import Spec

_REJECTED_SHOWN = 12
_BAR, _MARKS, _PLAIN_MARKS = 72, "█▓▒░·", "#%+-."  # of the memory map, the last where nothing lies


@dataclass(frozen=True)
class Explanation:
    """A plan and the work that it does for some lengths."""

    program: Program
    work: Work
    counted: tuple[tuple[str, str, int], ...]  # what the kernels do: what, formula, number
    backward: tuple[Program, BackwardWork] | None = None  # of a spec that has one
    values: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)  # that the mask reads

    @property
    def tiles(self) -> NDArray[np.int8]:
        """The class of each tile, [query tiles, key tiles]: 0 never loaded, 1 the mask is tested, 2 it is not."""
        return classes(self.program, self.work.q_len, self.work.kv_len, self.values)

    def to_json(self) -> dict[str, Any]:
        """The plan, rejected candidates with reasons, and the work: lengths, tiles by class, FLOPs, bytes, roofline, counts."""
        program = self.program.to_json() | {"digest": self.program.digest}
        counts = {what: {"formula": formula, "number": number} for what, formula, number in self.counted}
        work = {**self.work.to_json(), "roofline": roofline(self.work, self.program.arch), "counts": counts}
        if self.backward:
            chosen, done = self.backward
            found = {**done.to_json(), "roofline": roofline(done, chosen.arch)}
            work["backward"] = {"plan": chosen.to_json() | {"digest": chosen.digest}, **found}
        return {"plan": program, "rejected": program.pop("rejected"), **work}


def explain(spec: Spec, arch: str, q_len: int, kv_len: int, given: Sequence[str] = (), files: Sequence[str] = ()) -> Explanation:
    """Plans and measures; `given` holds NAME=VALUE, `files` NAME=FILE.npy. Raises SpecError, CommandError, PlanError, and
    CallError for params that no call may have."""
    sizes = Sizes(batch=1, q_len=q_len, kv_len=kv_len, heads=spec.group or 1, kv_heads=1)
    asked_for = Demands(spec, by_name(arch)).of(sizes)
    # Few query rows are so whatever the number of heads; whether tiles fill a card is not known without it.
    chosen = plan(spec, arch, demand=asked_for) if asked_for.rows else planned(spec, by_name(arch), length_class(kv_len))
    values = read_values(spec, given, q_len, kv_len) | read_tensors(spec, files, q_len, kv_len)
    check_values(chosen, {p.name: checked_number(p.name, p.type, values[p.name]) for p in spec.params})
    work, gradients = measure(chosen, q_len, kv_len, values), None
    if spec.backward:
        of_backward = planned_backward(spec, by_name(arch))
        gradients = of_backward, measure_backward(of_backward, work, values)
    unknown = chosen.combine or chosen.dealing.listed  # formulas are of blocks that take all keys of a mask's ranges
    counted = () if unknown else tuple(_counted(chosen, sizes, values))
    return Explanation(program=chosen, work=work, counted=counted, backward=gradients, values=values)


def _counted(chosen: Program, sizes: Sizes, values: Mapping[str, Any]) -> Iterator[tuple[str, str, int]]:
    from flashgen.plan.counts import FORMULAS, counts  # sympy: as long to import as everything else

    found = counts(chosen)
    numbers = found.at(chosen, sizes, values)
    for name, what in FORMULAS.items():
        bound = ", at most" if name == "rescales" and found.at_most else ""
        yield f"{what}{bound}", str(getattr(found, name)), numbers[name]


def roofline(work: Work | BackwardWork, arch: Arch) -> dict[str, Any]:
    """The least time on the architecture's common card: memory and tensor cores reach their peaks and do not wait for each other."""
    peak = arch.mma_flops * arch.multiprocessors * arch.clock_ghz * 1e9
    return {
        "intensity": work.flops / work.bytes,  # FLOP a byte
        "ridge": peak / (arch.dram_gbytes * 1e9),
        "compute_seconds": work.executed_flops / peak,
        "memory_seconds": work.bytes / (arch.dram_gbytes * 1e9),
    }


def save_tiles(found: Explanation, path: Path) -> None:
    """Saves the classes of all tiles as an array of NumPy. Raises CommandError."""
    try:
        np.save(path, found.tiles)
    except OSError as error:
        raise unwritable(path, error) from None


def page(found: Explanation) -> None:
    """Prints everything, a section a question."""
    out, chosen = console(), found.program
    out.print(Text(f"{chosen.spec.name} for {chosen.arch.name}: {chosen.skeleton}, plan {chosen.digest}", style="bold"))
    _section("plan", describe(chosen) if chosen.arguments else [("tile", f"{chosen.attention.tile.text}, in NumPy")])
    _section("why", chosen.decision.reasons)
    if chosen.decision.cost:
        _section("clocks of a key step", [(k, f"{v:.0f}") for k, v in chosen.decision.cost if k != "total"])
    _rejected(chosen)
    if chosen.attention.smem.regions:
        _memory(chosen)
    _section(f"work of {found.work.q_len} queries and {found.work.kv_len} keys, {heads(found.work)}", work_rows(found))
    if found.counted:
        _section("of this, by the kernel", [(what, f"{number:<12.6g} {formula}") for what, formula, number in found.counted])
    if found.backward:
        _backward(found.work, *found.backward)
    _mask(found)


def _backward(forward: Work, chosen: Program, work: BackwardWork) -> None:
    console().print(Text(f"\nbackward: {chosen.skeleton}, plan {chosen.digest}", style="bold"))
    _section("plan of the backward", describe(chosen) if chosen.arguments else [("tile", f"{chosen.main.tile.text}, in NumPy")])
    _section("why it is so", chosen.decision.reasons)
    rows = [_tiles(work.tiles, "query tiles of a key tile: "), *_flops(work, chosen.arch)]
    rows[2:2] = [("bytes", f"{work.bytes:.3e} of arrays, each once; {work.memory:.3e} of memory besides")]
    _section(f"work of the gradients, {heads(forward)}", rows)


def heads(work: Work) -> str:
    """The heads that the work is of, in words."""
    return "one head" if work.heads == 1 else f"{work.heads} query heads on one key/value head"


def _section(title: str, rows: Sequence[tuple[str, str]]) -> None:
    out = console()
    out.print()
    out.print(Text(title, style="bold cyan"))
    grid = table("", "")
    grid.show_header = False
    for label, text in rows:
        grid.add_row(*plain((f"  {label}", text)))
    out.print(grid)


def _rejected(chosen: Program) -> None:
    """The next best candidates, and the best of every tile height."""
    every = chosen.decision.rejected
    best = {one.block_m: one for one in reversed(every)}.values()
    shown = [one for i, one in enumerate(every) if i < _REJECTED_SHOWN or one in best]
    more = len(every) - len(shown)
    rows = [(r.candidate, r.reason) for r in shown] + ([(f"and {more} more", "all in --json")] if more else [])
    _section("rejected", rows or [("nothing", "there was one candidate")])


def _memory(chosen: Program) -> None:
    """The map to scale; what lies in the place of something else, as o in that of q, is only listed."""
    smem = chosen.attention.smem
    *marks, nothing = list(drawn(_MARKS, _PLAIN_MARKS))
    bar, rows = [nothing] * _BAR, []
    shown: list[Region] = []
    for mark, region in zip(cycle(marks), (r for r in smem.regions if not r.barrier), strict=False):
        first, last = (round(_BAR * at / smem.capacity) for at in (region.offset, region.end))
        under = [r.name for r in shown if r.offset < region.end and region.offset < r.end]
        if not under:
            bar[first:last] = mark * (last - first)
            shown.append(region)
        beside = f", in the place of {' and '.join(under)}" if under else ""
        rows.append((f"{mark} {region.name}", f"{region.count} x {region.bytes:<8} at {region.offset}{beside}"))
    if barriers := [r for r in smem.regions if r.barrier]:
        rows.append(("  barriers", f"{sum(r.count for r in barriers)} x 8 from {min(r.offset for r in barriers)} on"))
    _section(f"shared memory, {smem.bytes} of {smem.capacity} bytes", [("", "".join(bar)), *rows])


def work_rows(found: Explanation) -> list[tuple[str, str]]:
    """The work in words: tiles, pairs, FLOPs, bytes, what bounds it."""
    work = found.work
    flops, roof = _flops(work, found.program.arch)
    return [
        _tiles(work.tiles),
        ("visible", f"{work.visible:.1%} of the pairs of a query and a key"),
        flops,
        ("bytes", f"{work.bytes:.3e} of arrays, {work.loaded_bytes:.3e} of key and value tiles into shared memory"),
        roof,
    ]


def _tiles(tiles: Mapping[str, int], what: str = "") -> tuple[str, str]:
    count = sum(tiles.values())
    return "tiles", what + ", ".join(f"{n} {name} ({n / count:.1%})" for name, n in tiles.items())


def _flops(work: Work | BackwardWork, arch: Arch) -> tuple[tuple[str, str], tuple[str, str]]:
    """The products, and what bounds them."""
    roof = roofline(work, arch)
    bound = "tensor cores" if roof["compute_seconds"] > roof["memory_seconds"] else "memory"
    balance = f"{roof['intensity']:.0f} FLOP a byte; memory and tensor cores balance at {roof['ridge']:.0f}: bound by {bound}"
    return ("FLOPs", f"{work.flops:.3e} of visible pairs, {work.executed_flops:.3e} executed"), ("roofline", balance)


def _mask(found: Explanation) -> None:
    symbols = drawn(SYMBOLS, PLAIN_SYMBOLS)
    empty, partial, full = list(symbols)
    title = f"mask: {full} no mask code, {partial} mask tested, {empty} never loaded; queries downwards, keys to the right"
    _section(title, [("", line) for line in in_characters(found.work.picture.classes, symbols)])
