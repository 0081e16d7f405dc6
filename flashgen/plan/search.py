"""Enumerate, reject with a reason, score, choose: the same for every architecture; what differs is in sm90, sm80 and host."""

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol, cast

from flashgen.arch import Arch, by_name
from flashgen.errors import PlanError
from flashgen.expr import Expressions, Holes, KeyRanges, analyse, holes, lower
from flashgen.plan.model import Argument, LaunchPlan, PipelinePlan, Plan, Rejected, SmemPlan, SoftmaxPlan, TilePlan
from flashgen.plan.schedule import resolve
from flashgen.spec import Spec

TYPICAL_LENGTH = 4096  # queries and keys for which candidates are scored


@dataclass(frozen=True)
class Problem:
    """What a strategy plans for."""

    spec: Spec
    arch: Arch
    expressions: Expressions
    holes: Holes
    softmax: SoftmaxPlan
    copy_bytes: int  # what rows are aligned to
    visible: float  # share of the keys that a query row sees, at the typical length
    boundaries: float  # key tiles of a query tile that the mask cuts, at the typical length
    uniform: bool  # every query tile has the same number of key tiles


@dataclass(frozen=True)
class Draft:
    """A candidate: a tile and a pipeline, and the shared memory that they take, or why it does not fit."""

    tile: TilePlan
    pipeline: PipelinePlan
    smem: SmemPlan | str

    @property
    def text(self) -> str:
        pipe = self.pipeline
        extras = [f"{pipe.stages} stages", f"{pipe.warps} warps", *(["o apart"] if pipe.separate_output else []), *(["q in registers"] if pipe.query_in_registers else [])]
        return f"{self.tile.text}, {', '.join(extras)}"


class Strategy(Protocol):
    """What a module of flashgen.plan offers to plan for an architecture."""

    SKELETON: str

    def rescale(self, spec: Spec) -> tuple[str, float]:
        """The default, and its threshold in log2 units."""

    def check(self, problem: Problem) -> None:
        """Raises PlanError where no candidate can help."""

    def drafts(self, problem: Problem) -> Iterator[Draft]:
        """Every candidate: pinned values where the spec pins, else the usual ones."""

    def objection(self, problem: Problem, draft: Draft) -> str | None:
        """Why this draft is illegal: the limit and both numbers."""

    def cost(self, problem: Problem, draft: Draft) -> dict[str, float]:
        """Clocks of one key step by resource, and `total`: clocks for a thousand products of a query row and a visible key."""

    def launch(self, problem: Problem, draft: Draft) -> LaunchPlan:
        """Threads, order and arguments."""


@lru_cache(256)
def plan(spec: Spec, arch: str | Arch = "sm_90a", copy_bytes: int = 0) -> Plan:
    """Plans a spec for an architecture.

    `copy_bytes`: 0 for arrays as the architecture likes them best (rows 16-byte aligned, last axis contiguous), else what every row is aligned to (16, 8, 4, 2 bytes; 2 takes any strides).
    Raises PlanError, SpecError.

    >>> plan(Spec(head_dim=128, dtype="bfloat16"), "sm_90a").tile.text
    '128x176'
    """
    arch = by_name(arch) if isinstance(arch, str) else arch
    strategy = _strategy(arch, copy_bytes)
    problem = _problem(spec, arch, strategy, copy_bytes or 16)
    strategy.check(problem)
    legal: list[tuple[float, Draft, dict[str, float]]] = []
    rejected: list[Rejected] = []
    for draft in strategy.drafts(problem):
        reason = draft.smem if isinstance(draft.smem, str) else strategy.objection(problem, draft)
        if reason:
            rejected.append(Rejected(draft.text, reason))
        else:
            cost = strategy.cost(problem, draft)
            legal.append((cost["total"], draft, cost))
    if not legal:
        raise PlanError(_nothing_legal(problem, strategy, rejected))
    legal.sort(key=lambda entry: entry[0])
    total, best, cost = legal[0]
    slower = [Rejected(d.text, f"{c / total:.2f} times the clocks of {best.tile.text}") for c, d, _ in legal[1:]]
    assert isinstance(best.smem, SmemPlan)
    ranges = analyse(problem.expressions.mask, best.tile.block_m, best.tile.block_n, spec.tensors)
    return Plan(
        spec, arch, strategy.SKELETON, problem.expressions, problem.holes, ranges, best.tile, best.pipeline, best.smem, problem.softmax,
        strategy.launch(problem, best), tuple(cost.items()), tuple(_reasons(problem, best, cost, ranges, len(legal), len(rejected))), (*slower, *rejected),
    )  # fmt: skip


def _strategy(arch: Arch, copy_bytes: int) -> Strategy:
    name = arch.strategy if arch.strategy == "host" or not copy_bytes else "sm80"
    return cast(Strategy, importlib.import_module(f"flashgen.plan.{name}"))


def _problem(spec: Spec, arch: Arch, strategy: Strategy, copy_bytes: int) -> Problem:
    expressions = lower(spec)
    softmax = resolve(spec.schedule, *strategy.rescale(spec))
    shares = _shares(spec, analyse(expressions.mask, 128, 128))
    uniform = analyse(expressions.mask, 128, 128).uniform
    tiles = TYPICAL_LENGTH // 128
    visible = shares["full"] + shares["partial"] / 2 if not uniform else 1.0
    return Problem(spec, arch, expressions, holes(expressions, spec), softmax, copy_bytes, max(visible, 1 / tiles), shares["partial"] * tiles, uniform)


def _shares(spec: Spec, ranges: KeyRanges) -> dict[str, float]:
    """At the typical length, params at their defaults; what tensors hold is not known, so a mask that reads them counts as seeing everything."""
    if spec.tensors:
        return {"empty": 0.0, "partial": 0.0, "full": 1.0}
    values = {"b": 0, "h": 0, "hk": 0, **{p.name: p.default for p in spec.params}}
    return ranges.share(TYPICAL_LENGTH, TYPICAL_LENGTH, values)


def _nothing_legal(problem: Problem, strategy: Strategy, rejected: list[Rejected]) -> str:
    spec = problem.spec
    pins = {"block m": spec.block.m, "block n": spec.block.n, "stages": spec.stages, "warps": spec.warps}
    pinned = ", ".join(f"{k} = {v}" for k, v in pins.items() if v is not None)
    first = f"{rejected[0].candidate}: {rejected[0].reason}" if rejected else "no candidate"
    if not pinned:
        return f"no tile fits {problem.arch.name} for head dims {spec.head_dim.qk} and {spec.head_dim.v}; the first of {len(rejected)} tried, {first}"
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


def _reasons(problem: Problem, draft: Draft, cost: dict[str, float], ranges: KeyRanges, legal: int, rejected: int) -> Iterator[tuple[str, str]]:
    step = {k: v for k, v in cost.items() if k not in ("total", "step")}
    busiest = max(step, key=lambda k: step[k])
    yield "tile", f"the fewest clocks of {legal} legal candidates ({rejected} rejected); {busiest} takes {step[busiest]:.0f} of {cost['step']:.0f} clocks of a key step"
    yield "order", "every query tile has the same number of key tiles" if problem.uniform else "query tiles differ in their number of key tiles: the longest go first"
    if draft.pipeline.separate_output:
        yield "separate_output", "there is room to stage o beside q, so the next query tile loads while this one is written"
    yield "rescale", {"always": "o is rescaled at every key tile", "lazy": f"o is rescaled only where a maximum grew by more than 2^{problem.softmax.threshold:g}: exact, and rare"}[problem.softmax.rescale]
    for reason in ranges.reasons:
        yield "ranges", reason


def further_arguments(spec: Spec) -> Iterator[Argument]:
    """The members of Params after q, k, v, o and lse: what the expressions read, the scale, the sizes."""
    words = {"float32": "float", "int32": "int", "bool": "bool"}
    for t in spec.tensors:
        yield Argument(f"arg_{t.name}", f"Array<{words[t.dtype]}, {len(t.shape)}>", "array", t.name, comment=f"[{', '.join(map(str, t.shape))}]")
    yield Argument("softmax_scale", "float", "scalar", "softmax_scale")
    for p in spec.params:
        yield Argument(f"arg_{p.name}", p.type, "scalar", p.name)
    for name in ("q_len", "kv_len", "heads", "batch"):
        yield Argument(name, "int", "scalar", name)
    yield Argument("group", "int", "scalar", "group", comment="query heads a key/value head")
    yield Argument("section", "int", "scalar", "section", comment="heads whose keys and values stay in the L2 together")
