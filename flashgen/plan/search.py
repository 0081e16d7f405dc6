"""Enumerate, reject with a reason, score, choose: the same for every architecture; what differs is in sm90, sm80 and host."""

import importlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from flashgen.arch import Arch, by_name
from flashgen.errors import PlanError
from flashgen.expr import Expressions, Holes, KeyRanges, analyse, holes, lower
from flashgen.expr.language.nodes import Load, walk
from flashgen.plan import instructions
from flashgen.plan.after import with_head_maximum
from flashgen.plan.before import with_ranges
from flashgen.plan.model import LaunchPlan, PipelinePlan, Plan, Rejected, SmemPlan, SoftmaxPlan, TilePlan, row_outputs
from flashgen.plan.schedule import resolve
from flashgen.plan.split import UNHELD, place_reason, split
from flashgen.spec import Schedule, Spec

LENGTHS = (512, 1024, 8192)  # queries and keys for which candidates are scored: short sequences, and all others
NEVER: tuple[float, float] = (math.inf, math.inf)  # of Strategy.LAZY_FROM
_OUTPUT_REASONS = {
    "own": "there is room to stage o beside q, so the next query tile loads while this one is written",
    "keys": "o leaves through the place of a key tile, so the next query tile loads while this one is written",
}
_HALVES = "; blocks near one half of the L2 take one half of the heads, so that fewer bytes cross between the halves"
DOCUMENT = 1024  # queries and keys of one of several packed into a sequence
STRIPE, GRAIN = 64, 16  # query rows and keys, of which tiles are multiples


@dataclass(frozen=True)
class Problem:
    """What a strategy plans for."""

    spec: Spec
    arch: Arch
    expressions: Expressions
    holes: Holes
    softmax: SoftmaxPlan
    copy_bytes: int  # what rows are aligned to
    mapped: bool  # arrays are such as tensor maps take
    length: int  # queries and keys for which candidates are scored
    begin: NDArray[np.int64]  # of the keys that each STRIPE of query rows sees at that length, in GRAINs
    end: NDArray[np.int64]
    uniform: bool  # every query tile has the same number of key tiles
    paired: bool  # kernels before the attention find the keys of each query tile

    def key_tiles(self, block_m: int, block_n: int) -> float:
        """Key tiles of a query tile, on average, at that length."""
        first = np.arange(0, len(self.begin), max(1, block_m // STRIPE))
        begin, end = np.minimum.reduceat(self.begin, first) * GRAIN, np.maximum.reduceat(self.end, first) * GRAIN
        return float(np.mean(np.where(end > begin, -(-end // block_n) - begin // block_n, 0)))


@dataclass(frozen=True)
class Draft:
    """A candidate: a tile and a pipeline, and the shared memory that they take, or why it does not fit."""

    tile: TilePlan
    pipeline: PipelinePlan
    smem: SmemPlan | str

    @property
    def text(self) -> str:
        pipe = self.pipeline
        return ", ".join([self.tile.text, pipe.stages_text, f"{pipe.warps} warps", *pipe.extras])


class Strategy(Protocol):
    """What a module of flashgen.plan offers to plan for an architecture."""

    SKELETON: str
    LAZY_FROM: tuple[float, float]  # columns of v from which on lazy is the default: of most scores, of those that take special functions
    SHORTEST: int  # of LENGTHS, from which on it has tiles of their own
    APART: bool  # what a score adds to rows and to columns is told apart: the skeleton has places for both

    def check(self, problem: Problem) -> None:
        """Raises PlanError where no candidate can help."""

    def drafts(self, problem: Problem) -> Iterator[Draft]:
        """Every candidate: pinned values where the spec pins, else the usual ones."""

    def objection(self, problem: Problem, draft: Draft) -> str | None:
        """Why this draft is illegal: the limit and both numbers."""

    def cost(self, problem: Problem, draft: Draft) -> dict[str, float]:
        """Clocks of one key step by resource, and `total`: clocks for a query row."""

    def launch(self, problem: Problem, draft: Draft) -> LaunchPlan:
        """Threads, order and arguments."""


@lru_cache(256)
def plan(spec: Spec, arch: str | Arch = "sm_90a", copy_bytes: int = 0, length: int = LENGTHS[-1], candidate: str | None = None) -> Plan:
    """Plans a spec for an architecture.

    `copy_bytes`: 0 for arrays as the architecture likes them best (rows 16-byte aligned, last axis contiguous), else what every row is
    aligned to (16, 8, 4, 2 bytes; 2 takes any strides). `length`: queries and keys, one of LENGTHS, for which it shall be fast; it is right
    for all. `candidate`: one of `candidates`, in place of the first of them. Raises PlanError, SpecError.

    >>> plan(Spec(head_dim=128, dtype="bfloat16"), "sm_90a").tile.text
    '128x128'
    """
    arch = by_name(arch) if isinstance(arch, str) else arch
    strategy = _strategy(spec, arch, copy_bytes)
    problem = _problem(spec, arch, strategy, copy_bytes, length)
    legal, rejected = _legal(problem, strategy)
    why = f"the fewest clocks at length {problem.length} of {len(legal)} legal candidates ({len(rejected)} rejected)"
    if candidate is not None:
        expected, total = legal[0][0].text, legal[0][1]["total"]
        legal.sort(key=lambda entry: entry[0].text != candidate)  # the others stay in order
        assert legal[0][0].text == candidate, candidate
        why = f"flashgen tune measured it; the cost model expects {legal[0][1]['total'] / total:.2f} times the clocks of {expected}"
    (best, cost), others = legal[0], legal[1:]
    slower = [Rejected(d.text, f"{c['total'] / cost['total']:.2f} times the clocks of {best.tile.text}") for d, c in others]
    assert isinstance(best.smem, SmemPlan)
    ranges = analyse(problem.expressions.mask, best.tile.block_m, best.tile.block_n, spec.tensors)
    reasons = (*_reasons(problem, best, cost, ranges, why), *_place_reasons(best, (legal, rejected)))
    launch = with_head_maximum(strategy.launch(problem, best), spec)
    pieces = 1 + best.pipeline.warps // 4 if best.pipeline.narrow else 1
    launch = launch if problem.softmax.materialize else with_ranges(launch, ranges, pieces)
    what = (spec, arch, strategy.SKELETON, problem.expressions, problem.holes, ranges)
    return Plan(*what, best.tile, best.pipeline, best.smem, problem.softmax, launch, tuple(cost.items()), reasons, (*slower, *rejected))


@lru_cache(256)
def candidates(spec: Spec, arch: str | Arch = "sm_90a", length: int = LENGTHS[-1]) -> tuple[str, ...]:
    """The legal candidates, the fastest by the cost model first. Raises PlanError, SpecError.

    >>> candidates(Spec(head_dim=128, dtype="bfloat16"))[0]
    '128x128, 2 stages, 8 warps, o apart'
    """
    arch = by_name(arch) if isinstance(arch, str) else arch
    strategy = _strategy(spec, arch, 0)
    legal, _ = _legal(_problem(spec, arch, strategy, 0, length), strategy)
    return tuple(draft.text for draft, _ in legal)


_Legal = tuple[Draft, dict[str, float]]  # and its cost


def _legal(problem: Problem, strategy: Strategy) -> tuple[list[_Legal], list[Rejected]]:
    """The candidates, the cheapest first, and what was rejected."""
    strategy.check(problem)
    legal: list[_Legal] = []
    rejected: list[Rejected] = []
    for draft in strategy.drafts(problem):
        reason = draft.smem if isinstance(draft.smem, str) else strategy.objection(problem, draft)
        if reason:
            rejected.append(Rejected(draft.text, reason))
        else:
            legal.append((draft, strategy.cost(problem, draft)))
    if not legal:
        raise PlanError(_nothing_legal(problem, strategy, rejected))
    return sorted(legal, key=lambda entry: entry[1]["total"]), rejected


def _strategy(spec: Spec, arch: Arch, copy_bytes: int) -> Strategy:
    name = arch.strategy
    if name != "host" and split(spec):
        name += "_split"  # takes arrays of any strides
    elif name != "host":
        special = _special(spec)
        name = special or (name if not copy_bytes else "sm80")
    return cast(Strategy, importlib.import_module(f"flashgen.plan.{name}"))


def _special(spec: Spec) -> str | None:
    """The module for schedules that are not those of FlashAttention 2 and later; they run alike on every architecture."""
    softmax = resolve(spec.schedule)
    if softmax.materialize:
        return "standard"
    if softmax.outer == "kv":
        return "keys_outer"
    if softmax.passes > 1 or softmax.normalize == "each_step":
        return "passes"
    return None


def _problem(spec: Spec, arch: Arch, strategy: Strategy, copy_bytes: int, length: int) -> Problem:
    expressions = lower(spec)
    ranges = analyse(expressions.mask, STRIPE, GRAIN)
    length = DOCUMENT if ranges.pairings else max(length, strategy.SHORTEST)
    found, spans = holes(expressions, spec, arch.tanh, strategy.APART), _spans(spec, expressions, ranges, length)
    told = (ranges.uniform, bool(ranges.pairings))
    return Problem(spec, arch, expressions, found, _softmax(spec, strategy, found), copy_bytes or 16, not copy_bytes, length, *spans, *told)


def _softmax(spec: Spec, strategy: Strategy, found: Holes) -> SoftmaxPlan:
    if not spec.softmax.normalized and spec.schedule != Schedule():
        raise PlanError("schedule pins how maximum and sum are kept, and softmax: none has neither: schedule: auto")
    least = strategy.LAZY_FROM[found.instructions.special > 0]
    schedule = resolve(spec.schedule, "lazy" if spec.softmax.normalized and spec.head_dim.v >= least else "always")
    if schedule.rescale == "lazy" and "max" in row_outputs(spec):
        if spec.schedule.threshold:
            raise PlanError(
                f"schedule: lazy is {spec.schedule.threshold:g}, and outputs has the maximum, which then stays behind: {{lazy: 0}}"
            )
        schedule = replace(schedule, threshold=0.0)
    return replace(schedule, normalized=spec.softmax.normalized, sink=spec.softmax.sink is not None)


def _spans(spec: Spec, expressions: Expressions, ranges: KeyRanges, length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Params at their defaults. What tensors hold is not known, so a mask that reads them counts as seeing everything."""
    stripes, grains = length // STRIPE, length // GRAIN
    if not ranges.loops or any(isinstance(node, Load) for node in walk(expressions.mask)):
        return np.zeros(stripes, np.int64), np.full(stripes, grains)
    values = {"b": 0, "h": 0, "hk": 0, **{p.name: p.default for p in spec.params}}
    begin, end = ranges.evaluate(length, length, values)
    empty = begin >= end
    return np.where(empty, grains, begin).min(0), np.where(empty, 0, end).max(0)


def _nothing_legal(problem: Problem, strategy: Strategy, rejected: list[Rejected]) -> str:
    spec = problem.spec
    pins = {"block m": spec.block.m, "block n": spec.block.n, "stages": spec.stages, "warps": spec.warps}
    pinned = ", ".join(f"{k} = {v}" for k, v in pins.items() if v is not None)
    first = f"{rejected[0].candidate}: {rejected[0].reason}" if rejected else "no candidate"
    if not pinned:
        dims = f"{spec.head_dim.qk} and {spec.head_dim.v}"
        return f"no tile fits {problem.arch.name} for head dims {dims}; the first of {len(rejected)} tried, {first}"
    free = replace(problem, spec=_unpinned(spec))
    usable = [d for d in strategy.drafts(free) if not isinstance(d.smem, str) and not strategy.objection(free, d)]
    if not usable:
        return f"{pinned} is not legal on {problem.arch.name}: {first}"
    nearest = min(usable, key=lambda d: _distance(d, spec))
    return f"{pinned} is not legal on {problem.arch.name}: {first}. The nearest legal choice: {nearest.text}"


def _unpinned(spec: Spec) -> Spec:
    return Spec(**{k: v for k, v in spec.to_json().items() if k not in ("block", "stages", "warps")})


def _distance(draft: Draft, spec: Spec) -> int:
    """How far a draft is from what the spec pins, in rows, keys and their like."""
    tile, pipe = draft.tile, draft.pipeline
    pairs = ((tile.block_m, spec.block.m, 1), (tile.block_n, spec.block.n, 1), (pipe.stages, spec.stages, 32), (pipe.warps, spec.warps, 16))
    return sum(abs(have - want) * unit for have, want, unit in pairs if want is not None)


def _reasons(problem: Problem, draft: Draft, cost: dict[str, float], ranges: KeyRanges, why: str) -> Iterator[tuple[str, str]]:
    step = {k: v for k, v in cost.items() if k not in ("total", "step", "exposed")}
    busiest = max(step, key=lambda k: step[k])
    load = f"{busiest}: {step[busiest]:.0f} of the {cost['step']:.0f} clocks of a key step"
    yield "tile", f"{why}. The busiest, {load}"
    if draft.tile.v_splits > 1:
        columns = f"each with {draft.tile.v_columns} columns of v: no thread holds o of more than 256"
        yield "v_splits", f"{draft.tile.v_splits} blocks share a query tile, {columns}. Each computes the scores"
    yield "order", _order_reason(problem) + (_HALVES if draft.pipeline.halves else "")
    if draft.pipeline.output_place in _OUTPUT_REASONS:
        yield "output_place", _OUTPUT_REASONS[draft.pipeline.output_place]
    if draft.pipeline.narrow:
        m, n = draft.tile.block_m, draft.tile.block_n
        tiles = f"{problem.key_tiles(STRIPE, n):.1f} of the {problem.key_tiles(m, n):.1f} key tiles of a query tile"
        seen = f"on average {tiles} at length {problem.length}"
        yield "narrow", f"each warpgroup takes what its own 64 rows see, {'whatever the tensors hold' if problem.paired else seen}"
    yield "rescale", _rescale_reason(problem.softmax)
    if problem.spec.element.bytes == 2 and problem.arch.name != "host":
        yield from instructions.reasons(draft.tile, draft.pipeline, problem.softmax, problem.holes)
    for pairing in ranges.pairings:
        yield "ranges", f"{pairing.text}: known by extents over tiles, which two small kernels find before the attention"
    if planes := split(problem.spec):
        yield "precision", planes.text
        told = "the kernel forward_plain, whose time in a profile tells how many they are"
        yield "precision", f"computed in plain float32, slowly, by {told}: query tiles that see what is not finite, or what {UNHELD}"
    for reason in ranges.reasons:
        yield "ranges", reason


def _place_reasons(best: Draft, tried: tuple[list[_Legal], list[Rejected]]) -> Iterator[tuple[str, str]]:
    """Where float32 keys and values are split, if there was a choice."""
    clocks = {d.pipeline.in_place: cost["total"] for d, cost in sorted(tried[0], key=lambda entry: -entry[1]["total"])}
    refused = [r.reason for r in tried[1] if r.candidate.endswith("split in place")]
    if True in clocks or refused:
        yield "in_place", place_reason(best.pipeline.in_place, clocks, refused[0] if refused else "")


def _order_reason(problem: Problem) -> str:
    if problem.softmax.materialize:
        return "every query tile meets all key tiles, whatever the mask hides"
    if problem.uniform:
        return "every query tile has the same number of key tiles"
    unlike = "query tiles differ in their number of key tiles"
    return f"{unlike}: the longest go first" if problem.softmax.outer == "q" else f"{unlike}, and pass by whatever key tile is there"


def _rescale_reason(softmax: SoftmaxPlan) -> str:
    if not softmax.normalized:
        return "nothing is rescaled: the scores are the weights"
    if softmax.materialize or softmax.passes == 3:
        return "nothing is rescaled: the maximum of a row is known before its sum"
    if softmax.rescale == "lazy":
        return f"o is rescaled only where a maximum grew by more than 2^{softmax.threshold:g}: exact, and rare"
    return "l is rescaled at every key tile, o never" if softmax.passes == 2 else "o is rescaled at every key tile"
