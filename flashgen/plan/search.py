"""Enumerate, reject with a reason, score, choose: the same for every strategy."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from flashgen.arch import Arch, by_name
from flashgen.errors import PlanError
from flashgen.expr import Expressions, Holes, KeyRanges, analyse, holes, lower
from flashgen.expr.holes.bits import with_bits, with_listed
from flashgen.expr.holes.runs import with_runs
from flashgen.expr.language.fold import TRUE
from flashgen.expr.language.nodes import Load, Name, names, walk
from flashgen.plan.costs import model as costs
from flashgen.plan.hiding import hidden
from flashgen.plan.kernels import embed, finish_output
from flashgen.plan.kernels.head_maximum import head_maximum
from flashgen.plan.kernels.key_lists import key_lists, list_bits, seen_tiles
from flashgen.plan.kernels.key_ranges import key_ranges
from flashgen.plan.lists import bits_together, by_bits, listed
from flashgen.plan.lists import reasons as lists_reasons
from flashgen.plan.program import Decision, Program, Rejected
from flashgen.plan.shares import Demand, pinned
from flashgen.plan.softmax import softmax_plan
from flashgen.plan.strategies import STRATEGIES
from flashgen.plan.strategy import GRAIN, STRIPE, Costed, Draft, Drafting, Problem, Request, Seen, Strategy, Tried, serving
from flashgen.spec import Spec
from flashgen.theory.schedule import SoftmaxPlan

LENGTHS = (512, 1024, 8192)  # queries and keys for which candidates are scored: short sequences, and all others
LONG = 16384  # query rows for which a backward's are, beyond the last of those
LISTED = 128  # queries and keys of a tile at most, where tiles are listed because pairs of them are seen
S = Name("s", "float")  # a score that computes nothing
DOCUMENT = 1024  # queries and keys of one of several packed into a sequence


@lru_cache(256)
def plan(
    spec: Spec,
    arch: str | Arch = "sm_90a",
    copy_bytes: int = 0,
    length: int = LENGTHS[-1],
    candidate: str | None = None,
    demand: Demand | None = None,
) -> Program:
    """Plans a spec for an architecture.

    `copy_bytes`: 0 for arrays as the architecture likes them best (rows 16-byte aligned, last axis contiguous), else what every row is
    aligned to (16, 8, 4, 2 bytes; 2 takes any strides). `length`: queries and keys, one of LENGTHS, for which it shall be fast; it is right
    for all. `candidate`: one of `candidates`, in place of the first. `demand`: what lengths ask for besides (`flashgen.plan.shares`), by
    default what the spec does. Raises PlanError, SpecError.

    >>> plan(Spec(head_dim=128, dtype="bfloat16"), "sm_90a").attention.tile.text
    '128x128'
    """
    strategy, problem = _problem(spec, arch, copy_bytes, length, pinned(spec) if demand is None else demand)
    outcome = tried(problem, strategy)
    legal = list(outcome.legal)
    why = f"the fewest clocks at length {problem.seen.length} of {len(legal)} legal candidates ({len(outcome.refused)} rejected)"
    if candidate is not None:
        expected, cost = legal[0]
        legal.sort(key=lambda entry: entry[0].text != candidate)  # the others stay in order
        assert legal[0][0].text == candidate, candidate
        times = legal[0][1]["total"] / cost["total"]
        why = f"flashgen tune measured it; the cost model expects {times:.2f} times the clocks of {expected.text}"
    (best, cost), others = legal[0], legal[1:]
    slower = [(draft, f"{found['total'] / cost['total']:.2f} times the clocks of {best.tile.text}") for draft, found in others]
    rejected = tuple(Rejected(draft.text, reason, draft.tile.block_m) for draft, reason in (*slower, *outcome.refused))
    ranges = analyse(problem.expressions.mask, best.tile.block_m, best.tile.block_n, spec.tensors, spec.geometry, spec.params)
    around = (*_range_reasons(ranges), *embed.reasons(spec), *finish_output.reasons(spec))
    of_tiles = (*lists_reasons(spec, best.dealing.listed, length), *around)
    reasons = (*_reasons(problem, strategy, cost, why), *strategy.reasons(problem, best, outcome), *of_tiles)
    return _program(problem, strategy, best, ranges, Decision(cost=tuple(cost.items()), reasons=reasons, rejected=rejected))


@lru_cache(256)
def candidates(spec: Spec, arch: str | Arch = "sm_90a", length: int = LENGTHS[-1], each_tile: bool = False) -> tuple[str, ...]:
    """The legal candidates, the fastest by the cost model first. Raises PlanError, SpecError.

    `each_tile`: the fastest of each tile alone, as those of one tile differ little.

    >>> candidates(Spec(head_dim=128, dtype="bfloat16"))[0]
    '128x128, 2 stages, 8 warps, o staged'
    """
    strategy, problem = _problem(spec, arch, 0, length, pinned(spec))
    return tried(problem, strategy).names(each_tile)


def scored(spec: Spec, arch: str | Arch, length: int) -> dict[str, Callable[[], float]]:
    """The clocks for a query row of each legal candidate, by name: functions, which go by the cost model's numbers of the moment.

    >>> scored(Spec(head_dim=128, dtype="bfloat16"), "sm_90a", 8192)["128x128, 2 stages, 8 warps, o staged"]() > 0
    True
    """
    strategy, problem = _problem(spec, arch, 0, length, pinned(spec))

    def clocks(draft: Draft) -> float:
        return strategy.cost(problem, draft)["total"]

    return {draft.text: partial(clocks, draft) for draft, _ in tried(problem, strategy).legal}


def _objection(problem: Problem, strategy: Drafting, draft: Draft) -> str | None:
    """The reason why a draft is illegal: shared memory, what lists of blocks ask for, the limits of its strategy."""
    if isinstance(draft.smem, str):
        return draft.smem
    if blocks := problem.spec.blocks:
        for name, size, of in (("m", draft.tile.block_m, blocks.m), ("n", draft.tile.block_n, blocks.n)):
            free = problem.grouped if name == "m" else blocks.by_key  # the rows of a group are all of one list
            if of % size and not free:
                return f"block {name} is {size}: it divides that of lists, {of}"
    if (together := bits_together(problem.holes.mask)) and draft.tile.block_n not in together:
        return f"block n is {draft.tile.block_n}: bits are of {', '.join(map(str, together))} keys at once"
    if problem.seen.listed == "mask":
        for name, size, given in (("m", draft.tile.block_m, problem.spec.block.m), ("n", draft.tile.block_n, problem.spec.block.n)):
            if given is None and size > LISTED:
                return f"block {name} is {size}: where tiles are listed because pairs of them are seen, larger ones than {LISTED} hold more"
    return strategy.objection(problem, draft)


def _program(problem: Problem, strategy: Strategy, best: Draft, ranges: KeyRanges, decision: Decision) -> Program:
    """The kernels of a strategy between those that every attention may need before and after it."""
    parts = strategy.parts(problem, best, ranges)
    if parts.arguments:
        parts = finish_output.finished(problem.spec, parts.followed(head_maximum(problem.spec)))
        early = parts.kernels[0].grid.early
        if best.dealing.listed:
            parts = parts.preceded(key_lists(problem.spec, best, early=early))
        if problem.holes.mask.listed:
            parts = parts.preceded(list_bits(problem.spec, best.tile, early=early))
        if best.dealing.listed == "mask":
            mask, bits = problem.expressions.mask, problem.holes.mask.bits
            looking = _holes(problem.request, strategy, replace(problem.expressions, score=S)) if bits else problem.holes
            parts = parts.preceded(seen_tiles(best.tile, mask, looking, bits=bits, early=early))
        if not problem.softmax.materialize:
            parts = parts.preceded(key_ranges(ranges, early=early, pieces=best.pieces, runs=bool(problem.holes.mask.runs)))
        parts = embed.embedding(problem.spec, parts)
    return Program(
        spec=problem.spec,
        arch=problem.arch,
        skeleton=strategy.skeleton,
        expressions=problem.expressions,
        holes=hidden(problem, best, ranges),
        softmax=problem.softmax,
        kernels=parts.kernels,
        arguments=parts.arguments,
        scratch=parts.scratch,
        decision=decision,
    )


def tried(problem: Problem, strategy: Drafting) -> Tried:
    """All candidates. Raises PlanError if none is legal."""
    strategy.check(problem)
    legal: list[Costed] = []
    refused: list[tuple[Draft, str]] = []
    for draft in strategy.drafts(problem):
        if reason := _objection(problem, strategy, draft):
            refused.append((draft, reason))
        else:
            legal.append((draft, strategy.cost(problem, draft)))
    if not legal:
        raise PlanError(_nothing_legal(problem, strategy, refused))
    return Tried(tuple(sorted(legal, key=lambda entry: entry[1]["total"])), tuple(refused))


def _problem(spec: Spec, arch: str | Arch, copy_bytes: int, length: int, demand: Demand) -> tuple[Strategy, Problem]:
    request = Request(spec, by_name(arch) if isinstance(arch, str) else arch, copy_bytes, demand=demand)
    strategy = serving(STRATEGIES, request)
    expressions = lower(spec)
    ranges = analyse(expressions.mask, STRIPE, GRAIN, geometry=spec.geometry, params=spec.params)
    chosen = listed(request, strategy, ranges, length)
    length = DOCUMENT if ranges.pairings else max(length, strategy.shortest)
    rows = "rows_of_group" if request.of_group else "rows_of_head"
    without_gaps = ranges.contiguous and not chosen and rows == "rows_of_head" and "kv_len" not in spec.geometry.behind
    found = _holes(request, strategy, expressions, rows, without_gaps)
    if chosen == "mask" and by_bits(spec, expressions.mask):
        found = with_bits(_holes(request, strategy, replace(expressions, mask=TRUE), rows), found, "b" in names(expressions.mask))
    found = with_runs(found, ranges.pairings if strategy.shares_numbers and not chosen else (), spec.block.n)
    if spec.blocks and spec.blocks.by_key:
        found = with_listed(found, spec.blocks)
    problem = Problem(
        request=request,
        expressions=expressions,
        holes=found,
        softmax=softmax_plan(spec, strategy, found),
        seen=replace(seen(spec, expressions, ranges, length), listed=chosen),
    )
    return strategy, problem


def _holes(request: Request, strategy: Strategy, expressions: Expressions, rows: str = "rows_of_head", without_gaps: bool = False) -> Holes:
    return holes(
        expressions,
        request.spec,
        request.arch.tanh,
        strategy.separate,
        beyond=strategy.beyond,
        rows=rows,
        shares_numbers=strategy.shares_numbers,
        shares_tiles=strategy.shares_numbers and without_gaps and not request.demand.by_threads,
    )


def seen(spec: Spec, expressions: Expressions, ranges: KeyRanges, length: int) -> Seen:
    """The keys that the mask shows of a sequence of this length. `ranges`: of STRIPE query rows and GRAIN keys."""
    begin, end = _spans(spec, expressions, ranges, length)
    return Seen(length=length, begin=begin, end=end, uniform=ranges.uniform, paired=bool(ranges.pairings))


def _spans(spec: Spec, expressions: Expressions, ranges: KeyRanges, length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Params at their defaults. What tensors hold is not known, so a mask that reads them counts as seeing everything."""
    stripes, grains = length // STRIPE, length // GRAIN
    if not ranges.loops or any(isinstance(node, Load) for node in walk(expressions.mask)):
        return np.zeros(stripes, np.int64), np.full(stripes, grains)
    values = {"b": 0, "h": 0, "hk": 0, **{p.name: p.default for p in spec.params}}
    begin, end = ranges.evaluate(length, length, values)
    empty = begin >= end
    return np.where(empty, grains, begin).min(0), np.where(empty, 0, end).max(0)


def _nothing_legal(problem: Problem, strategy: Drafting, refused: list[tuple[Draft, str]]) -> str:
    spec = problem.spec
    pins = {"block m": spec.block.m, "block n": spec.block.n, "stages": spec.stages, "warps": spec.warps}
    pinned = ", ".join(f"{k} = {v}" for k, v in pins.items() if v is not None)
    first = f"{refused[0][0].text}: {refused[0][1]}" if refused else "no candidate"
    if not pinned:
        dims = f"{spec.head_dim.qk} and {spec.head_dim.v}"
        return f"no tile fits {problem.arch.name} for head dims {dims}; the first of {len(refused)} tried, {first}"
    free = replace(problem, request=replace(problem.request, spec=_unpinned(spec)))
    usable = [d for d in strategy.drafts(free) if not _objection(free, strategy, d)]
    if not usable:
        return f"{pinned} is not legal on {problem.arch.name}: {first}"
    nearest = min(usable, key=lambda d: _distance(d, spec))
    return f"{pinned} is not legal on {problem.arch.name}: {first}. The nearest legal choice: {nearest.text}"


def _unpinned(spec: Spec) -> Spec:
    return Spec(**{k: v for k, v in spec.to_json().items() if k not in ("block", "stages", "warps")})


def _distance(draft: Draft, spec: Spec) -> int:
    """The distance of a draft from what the spec pins, in rows, keys and their like."""
    tile, block = draft.tile, spec.block
    sizes = ((tile.block_m, block.m, 1), (tile.block_n, block.n, 1))
    counts = ((draft.pipeline.stages, spec.stages, 32), (draft.workers.warps, spec.warps, 16))
    return sum(abs(have - want) * unit for have, want, unit in (*sizes, *counts) if want is not None)


def _reasons(problem: Problem, strategy: Strategy, cost: dict[str, float], why: str) -> Iterator[tuple[str, str]]:
    """The reasons for this candidate, this order, this rescale, told alike for every strategy."""
    step = {k: v for k, v in cost.items() if k not in ("total", "step", "exposed")}
    busiest = max(step, key=lambda k: step[k])
    yield "tile", f"{why}. The busiest, {busiest}: {step[busiest]:.0f} of the {cost['step']:.0f} clocks of a key step"
    yield from costs.reasons(problem.arch, strategy.costs)
    yield "order", _order_reason(problem)
    yield "rescale", _rescale_reason(problem.softmax)


def _range_reasons(ranges: KeyRanges) -> Iterator[tuple[str, str]]:
    for pairing in ranges.pairings:
        yield "ranges", f"{pairing.text}: known by extents over tiles, which two small kernels find before the attention"
    for reason in ranges.reasons:
        yield "ranges", reason


def _order_reason(problem: Problem) -> str:
    if problem.softmax.materialize:
        return "every query tile meets all key tiles, whatever the mask hides"
    if problem.seen.uniform:
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
