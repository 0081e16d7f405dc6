"""A Strategy serves some combinations of engine, operand and algorithm: it drafts candidates for the planner, and says what they cost."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from flashgen.arch import Arch
from flashgen.errors import PlanError
from flashgen.expr import Expressions, Holes, KeyRanges, row_ranges
from flashgen.plan.backward_kernel import Backward
from flashgen.plan.kernel import Attention, DealingPlan, Grid, Listed, PipelinePlan, SmemPlan, TilePlan, WorkersPlan
from flashgen.plan.program import Parts
from flashgen.plan.shares import WHOLE, Demand, groupable
from flashgen.spec import Spec
from flashgen.theory.schedule import SoftmaxPlan, resolve

STRIPE, GRAIN = 64, 16  # query rows and keys, of which tiles are multiples
NEVER: tuple[float, float] = (math.inf, math.inf)  # of Strategy.lazy_from


@dataclass(frozen=True)
class Request:
    """A spec for an arch, and the arrays that it shall take."""

    spec: Spec
    arch: Arch
    copy_bytes: int  # that every row is aligned to; 0: arrays as the architecture likes them best
    demand: Demand = WHOLE  # of a call's lengths
    backward: bool = False  # for gradients
    head_shares: int = 1  # of gradients: blocks that share the query heads of a key tile, where the kernel can

    @property
    def mapped(self) -> bool:
        """True if arrays are such as tensor maps take."""
        return not self.copy_bytes

    @property
    def of_group(self) -> bool:
        """True if a query tile has the rows of all heads of a group."""
        return self.demand.grouped and groupable(self.spec)

    @property
    def algorithm(self) -> str:
        """The name of the loops: backward; else those that the schedule asks for: online, passes, keys_outer, standard."""
        if self.backward:
            return "backward"
        softmax = resolve(self.spec.schedule)
        if softmax.materialize:
            return "standard"
        if softmax.outer == "kv":
            return "keys_outer"
        return "passes" if softmax.passes > 1 or softmax.normalize == "each_step" else "online"

    @property
    def text(self) -> str:
        """The combination, for people."""
        rows = "" if self.mapped else f", rows aligned to {self.copy_bytes} bytes"
        shared = ", keys taken in shares" if self.demand.shared else ""
        return f"{self.algorithm} attention of {self.spec.dtype} on {self.arch.name}{rows}{shared}"


@dataclass(frozen=True)
class Seen:
    """The keys that the mask shows of a sequence, at the length for which candidates are scored."""

    length: int  # queries and keys
    begin: NDArray[np.int64]  # of the keys that each STRIPE of query rows sees at that length, in GRAINs
    end: NDArray[np.int64]
    uniform: bool  # every query tile has the same number of key tiles
    paired: bool  # kernels before the attention find the keys of each query tile
    listed: Listed = ""  # kernels before the attention list the key tiles of each query tile

    _known: dict[tuple[int, int], float] = field(default_factory=dict, init=False, repr=False, compare=False)  # many drafts ask the same

    def key_tiles(self, block_m: int, block_n: int) -> float:
        """Key tiles of a query tile, on average."""
        if (block_m, block_n) not in self._known:
            self._known[block_m, block_n] = self._count(block_m, block_n)
        return self._known[block_m, block_n]

    def _count(self, block_m: int, block_n: int) -> float:
        first = np.arange(0, len(self.begin), max(1, block_m // STRIPE))
        begin, end = np.minimum.reduceat(self.begin, first) * GRAIN, np.maximum.reduceat(self.end, first) * GRAIN
        return float(np.mean(np.where(end > begin, -(-end // block_n) - begin // block_n, 0)))


@dataclass(frozen=True)
class Problem:
    """The problem that a strategy plans for: a request, and what follows from its expressions."""

    request: Request
    expressions: Expressions
    holes: Holes
    softmax: SoftmaxPlan
    seen: Seen

    @property
    def spec(self) -> Spec:
        """The spec that is planned."""
        return self.request.spec

    @property
    def arch(self) -> Arch:
        """The architecture that is planned for."""
        return self.request.arch

    @property
    def grouped(self) -> bool:
        """True if a query tile has the rows of all heads of a group."""
        return self.holes.rows == "rows_of_group"

    @property
    def copy_bytes(self) -> int:
        """The bytes of one copy into shared memory."""
        return self.request.copy_bytes or 16

    def with_stages(self, stages: int) -> "Problem":
        """The problem with so many stages, unless the spec pins them."""
        spec = Spec(**(self.spec.to_json() | {"stages": self.spec.stages or stages}))
        return replace(self, request=replace(self.request, spec=spec))


@dataclass(frozen=True)
class Draft:
    """A candidate, and the shared memory that it takes, or why that does not fit."""

    tile: TilePlan
    workers: WorkersPlan
    pipeline: PipelinePlan
    smem: SmemPlan | str
    dealing: DealingPlan
    key_stages: int = 1  # of a backward: key tiles in shared memory
    copied: bool = False  # of a backward: sums of dq have a place in shared memory, from which copies add them

    @property
    def text(self) -> str:
        """The candidate for people: tile, stages, warps."""
        pipe, ahead = self.pipeline, [f"{self.key_stages} key tiles"] if self.key_stages > 1 else []
        return ", ".join([self.tile.text, pipe.stages_text, f"{self.workers.warps} warps", *pipe.extras, *ahead])

    @property
    def pieces(self) -> int:
        """The pieces of a query tile that have key ranges: itself, and the rows of each warpgroup where those narrow them."""
        return 1 + self.workers.warpgroups if self.dealing.narrow else 1

    def attention(self, entry: str, grid: Grid, ranges: KeyRanges) -> Attention:
        """The kernel of a draft that fits."""
        assert isinstance(self.smem, SmemPlan), self.smem
        return Attention(
            entry,
            grid,
            self.smem,
            tile=self.tile,
            workers=self.workers,
            pipeline=self.pipeline,
            dealing=self.dealing,
            ranges=ranges,
        )

    def backward(self, grid: Grid, problem: "Problem") -> Backward:
        """The kernel of a draft of a backward that fits."""
        assert isinstance(self.smem, SmemPlan), self.smem
        tile, spec = self.tile, problem.spec
        ranges = row_ranges(problem.expressions.mask, tile.block_m, tile.block_n, spec.tensors, spec.geometry, spec.params)
        return Backward(
            "backward",
            grid,
            self.smem,
            tile=self.tile,
            workers=self.workers,
            pipeline=self.pipeline,
            dealing=replace(self.dealing, listed=problem.seen.listed),
            ranges=ranges,
        )


Costed = tuple[Draft, dict[str, float]]


@dataclass(frozen=True)
class Tried:
    """All candidates: the legal ones with their cost, the cheapest first, and the others with the reason against each."""

    legal: tuple[Costed, ...]
    refused: tuple[tuple[Draft, str], ...]

    def names(self, each_tile: bool = False) -> tuple[str, ...]:
        """The names of the legal candidates, the cheapest first; of each tile the cheapest alone where `each_tile` says so."""
        drafts = [draft for draft, _ in self.legal]
        firsts = {draft.tile.text: draft for draft in reversed(drafts)}
        return tuple(draft.text for draft in drafts if not each_tile or firsts[draft.tile.text] is draft)


class Drafting(ABC):
    """Drafts the candidates of some combinations of engine, operand and algorithm, and judges them."""

    skeleton: ClassVar[str]  # the template of its kernels
    engine: ClassVar[str]  # one of those of its architectures, by which it multiplies
    costs: ClassVar[str] = ""  # the table of its numbers in flashgen.plan.costs, if it has one
    walks_lists: ClassVar[bool] = False  # its skeleton walks lists of tiles
    beyond: ClassVar[bool] = False  # its copies bring keys beyond the end of a sequence of which others have more

    @abstractmethod
    def serves(self, request: Request) -> str | None:
        """The reason why it does not serve a request; None if it does."""

    @abstractmethod
    def check(self, problem: Problem) -> None:
        """Raises PlanError where no candidate can help."""

    @abstractmethod
    def drafts(self, problem: Problem) -> Iterator[Draft]:
        """Every candidate: pinned values where the spec pins, else the usual ones."""

    @abstractmethod
    def objection(self, problem: Problem, draft: Draft) -> str | None:
        """The reason why this draft is illegal: the limit and both numbers."""

    @abstractmethod
    def cost(self, problem: Problem, draft: Draft) -> dict[str, float]:
        """Clocks of one key step by resource, and `total`: clocks for a query row."""

    def reasons(self, problem: Problem, draft: Draft, tried: Tried) -> Iterator[tuple[str, str]]:
        """The reasons for choices that only this strategy knows of: field, reason."""
        yield from ()


class Strategy(Drafting):
    """Plans the kernels of a forward."""

    lazy_from: ClassVar[tuple[float, float]] = NEVER  # columns of v from which on lazy is the default: of most scores, of busy ones
    shortest: ClassVar[int] = 1024  # of search.LENGTHS, from which on it has tiles of their own
    separate: ClassVar[bool] = False  # what a score adds to rows and to columns is separated: the skeleton has places for both
    shares_numbers: ClassVar[bool] = False  # a warp of its skeleton brings what tensors hold at the keys of a tile to shared memory

    @abstractmethod
    def parts(self, problem: Problem, draft: Draft, ranges: KeyRanges) -> Parts:
        """Kernels, arguments and scratch of a draft, without those that find key ranges or a head's maximum."""


class BackwardStrategy(Drafting):
    """Plans the kernels of a backward. What a spec pins of tiles and schedules is the forward's."""

    @abstractmethod
    def parts(self, problem: Problem, draft: Draft) -> Parts:
        """Kernels, arguments and scratch of a draft: delta, backward, and what rounds dq, where backward does not."""


Served = TypeVar("Served", bound=Drafting)


def serving(strategies: Sequence[Served], request: Request) -> Served:
    """The first that serves a request. Raises PlanError, with what each of them says, if none does."""
    refusals = []
    for strategy in strategies:
        if (reason := strategy.serves(request)) is None:
            return strategy
        refusals.append(f"{strategy.skeleton}: {reason}")
    raise PlanError(f"no kernel serves {request.text}. {'; '.join(refusals)}")
