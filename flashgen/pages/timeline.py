"""A few key steps in time, by role: who multiplies, who computes weights, who waits, and when a copy may come.

Times are those of the cost model, as `flashgen explain` lists them, not a measurement.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from flashgen.plan.backward_kernel import Backward
from flashgen.plan.kernel import WARPGROUP_ROWS
from flashgen.plan.program import Program

PRODUCTS, WEIGHTS, COPIES, WAITS = "products", "weights", "copies", "waits"
KINDS = {
    PRODUCTS: "the tensor cores multiply",
    WEIGHTS: "scores become weights",
    COPIES: "its place is free: the next copy has so long",
    WAITS: "waits",
}
MOST_STEPS = 4  # that are shown


@dataclass(frozen=True)
class Bar:
    """An occupation from one clock to another."""

    kind: str  # of KINDS
    begin: float
    end: float
    text: str


@dataclass(frozen=True)
class Lane:
    """One role. `functions`: the names that its code may have in the emitted text, the likeliest first."""

    role: str
    bars: tuple[Bar, ...]
    functions: tuple[str, ...]


@dataclass(frozen=True)
class Timeline:
    """So many clocks by role."""

    clocks: float
    steps: int  # key steps, or query steps of a backward
    lanes: tuple[Lane, ...]

    def share(self, clocks: float) -> float:
        """So many clocks as a percentage of all."""
        return round(100 * clocks / self.clocks, 3)


@dataclass(frozen=True)
class _Pace:
    """The paces of those that compute, in clocks. They follow each other: the second begins a fraction of a step after the first."""

    step: float
    count: int  # that compute in turns: warpgroups of a block, or blocks of a multiprocessor
    first: float  # the products before the weights,
    weights: float
    second: float  # and those after them, or beside them
    beside: bool  # the second ones run while weights are computed

    @property
    def last_start(self) -> float:
        """The clock at which the last one begins."""
        return self.step * (self.count - 1) / self.count


def timeline(program: Program) -> Timeline | None:
    """The timeline of a program's main kernel; None where nothing is launched, or the cost model has no clocks."""
    costs, kernel = dict(program.decision.cost), program.main
    if not program.launched or not {"tensor cores", "step"} <= costs.keys():
        return None
    pace, steps = _pace(program, costs), min(MOST_STEPS, kernel.pipeline.stages)
    lanes = (*_loading(program, pace, steps), *_computing(program, pace, steps))
    return Timeline(clocks=pace.step * steps, steps=steps, lanes=lanes)


def _pace(program: Program, costs: dict[str, float]) -> _Pace:
    kernel = program.main
    workers, tile = kernel.workers, kernel.tile
    loaders = workers.load_warps > 0  # else the blocks of a multiprocessor take turns, each with a step of its own
    count = workers.warpgroups if loaders else workers.blocks
    step, products = costs["step"] * (1 if loaders else count), costs["tensor cores"] / (count if loaders else 1)
    if isinstance(kernel, Backward):
        scores = products * (tile.qk_columns + tile.v_columns) / (3 * tile.qk_columns + 2 * tile.v_columns)
        weights = costs["special functions"] / (count if loaders else 1)
        return _Pace(step=step, count=count, first=scores, weights=weights, second=products - scores, beside=False)
    scores = products * tile.qk_columns / (tile.qk_columns + tile.v_columns)
    beside = kernel.pipeline.overlap or (loaders and not program.planes)
    alone = costs.get("one warpgroup", costs.get("one warp", 0.0) * count)
    busy = alone - (products / 2 if beside else products)
    least = costs.get("special functions", 0.0) / (count if loaders else 1)
    room = step - scores - (0 if beside else products - scores)
    return _Pace(step=step, count=count, first=scores, weights=min(room, max(busy, least)), second=products - scores, beside=beside)


def _computing(program: Program, pace: _Pace, steps: int) -> Iterator[Lane]:
    workers, backward = program.main.workers, isinstance(program.main, Backward)
    words = ("s and dp", "p and ds", "dv, dk and dq") if backward else ("scores", "weights", "output")
    rows = "keys" if backward else "query rows"
    for i in range(pace.count):
        bars = [Bar(PRODUCTS, 0, pace.first, text=words[0])]
        if pace.beside:
            bars.append(
                Bar(WEIGHTS, pace.first, pace.first + pace.weights, text=f"{words[1]}; beside them the {words[2]} of the tile before")
            )
        else:
            bars.append(Bar(WEIGHTS, pace.first, pace.first + pace.weights, text=words[1]))
            bars.append(Bar(PRODUCTS, bars[-1].end, bars[-1].end + pace.second, text=words[2]))
        if bars[-1].end < pace.step:
            bars.append(Bar(WAITS, bars[-1].end, pace.step, text="waits for the tensor cores, or for a copy"))
        role = f"warpgroup {i}: {WARPGROUP_ROWS} {rows}" if workers.load_warps else f"block {i} of a multiprocessor, {workers.warps} warps"
        yield Lane(
            role, tuple(_repeated(bars, pace.step, i * pace.step / pace.count, steps)), ("advance_tile", "attend_tile", "step", "run")
        )


def _loading(program: Program, pace: _Pace, steps: int) -> Iterator[Lane]:
    kernel = program.main
    loaders, round_ = kernel.workers.load_warps > 0, pace.step * steps
    last = pace.last_start if loaders else 0.0  # blocks have places of their own
    second = (pace.step + pace.first if pace.beside else pace.first + pace.weights) % round_
    moved = tuple((name, 0.0, pace.first + pace.weights + pace.second) for name in ("Q", "do", "Q or do"))
    if not isinstance(kernel, Backward):
        moved = (("K", 0.0, pace.first), ("V", second, second + pace.second))
    known = {region.name: region for region in kernel.smem.regions}
    who = "one thread loads" if loaders else "all warps load"
    for name, begin, end in moved:
        if name not in known:
            continue
        read, stages = last + end - begin, known[name].count
        bars = [Bar(PRODUCTS, begin, begin + read, text=f"{name} is read")]
        if read < round_:
            bars.append(Bar(COPIES, begin + read, begin + round_, text=f"{name}: {round_ - read:.0f} clocks for the next copy"))
        role = f"{who}: {name}, stage 1 of {stages}" if stages > 1 else f"{who}: {name}"
        yield Lane(role, tuple(_repeated(bars, round_, 0, 1)), ("load", "load_next", "load_keys", "load_queries"))
    if kernel.workers.load_warps and program.dealing.counter:
        yield Lane("one warp deals tiles", (Bar(WAITS, 0, round_, text="waits: the next tile is known before this one ends"),), ("deal",))


def _repeated(bars: list[Bar], period: float, start: float, times: int) -> Iterator[Bar]:
    """The bars again and again, cut to the clocks that are shown."""
    whole = period * times
    for turn in range(-1, times):
        for bar in bars:
            begin, end = (max(0.0, min(whole, at + start + turn * period)) for at in (bar.begin, bar.end))
            if end > begin:
                yield Bar(bar.kind, begin, end, text=bar.text)
