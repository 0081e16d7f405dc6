"""A Plan: how a spec runs on one architecture, grouped by concern. Templates read it and nothing else."""

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from flashgen.arch import Arch
from flashgen.dtypes import DType
from flashgen.expr import Expressions, Holes, KeyRanges
from flashgen.plan.split import SplitPlan, split
from flashgen.spec import Spec


@dataclass(frozen=True)
class TilePlan:
    """What one step of a block multiplies. Sizes in rows and columns."""

    block_m: int  # query rows of a tile
    block_n: int  # keys of a tile
    qk_columns: int  # of q and k in the products: the head dim in steps of 16, zero beyond it
    v_columns: int  # of v and o
    qk_stored: int  # columns that a row of q or k takes in shared memory
    v_stored: int
    qk_part: int = 0  # columns of q and k that one sum of a score covers; 0: all
    v_part: int = 0  # columns of v that one product takes; 0: all
    v_splits: int = 1  # blocks that share a query tile, each with so many columns of v and o
    query_tiles: int = 1  # of a block that takes several while a key tile stays

    @property
    def text(self) -> str:
        return f"{self.block_m}x{self.block_n}"


OutputPlace = Literal["registers", "own", "keys", "queries"]  # none in shared memory, one of its own, that of a key tile, that of q


@dataclass(frozen=True)
class PipelinePlan:
    """Who works, and what is in flight."""

    stages: int  # key and value tiles in shared memory
    warps: int  # that compute
    load_warps: int = 0  # that only load
    compute_registers: int = 0  # a thread, setmaxnreg; 0: as compiled
    load_registers: int = 0
    turns: bool = False  # warpgroups take turns at the tensor cores
    overlap: bool = False  # of float32: a tile's scores and the product of the one before are in flight at once; of 16 bits they always are
    output_place: OutputPlace = "registers"  # that o leaves from, of forward_sm90: others have one way
    query_stages: int = 1  # q of so many query tiles in shared memory
    narrow: bool = False  # a warpgroup skips the key tiles of a query tile that none of its own rows sees
    halves: bool = False  # query tiles are dealt by halves of the L2: blocks near one take the heads of one half of all heads
    query_in_registers: bool = False
    in_place: bool = False  # float32 keys and values are split where they arrive in shared memory, else a kernel before has split them
    copy_bytes: int = 16  # of one copy into shared memory: what every row is aligned to
    multiplied: int = 0  # one exponential in so many by multiply-adds, beside the special function unit; 0: none
    blocks: int = 1  # that shall be resident on a multiprocessor: a bound for the compiler's registers

    @property
    def stages_text(self) -> str:
        return f"{self.stages} stage{'s' if self.stages > 1 else ''}"

    @property
    def extras(self) -> list[str]:
        """What else a candidate is told by."""
        extras = {
            "o apart": self.output_place == "own",
            "o in place of keys": self.output_place == "keys",
            "q in registers": self.query_in_registers,
            "overlapped": self.overlap,
            "split in place": self.in_place,
        }
        extras[f"{self.query_stages} q tiles"] = self.query_stages > 1
        extras[f"an exponential in {self.multiplied} by multiply-adds"] = self.multiplied > 0
        return [text for text, holds in extras.items() if holds]


@dataclass(frozen=True)
class Region:
    """A named piece of shared memory: `count` pieces of `bytes`, from `offset` on."""

    name: str  # as reports name it: `K`, `K full`
    symbol: str  # as the emitted text names it: K, K_FULL
    offset: int
    bytes: int
    count: int = 1
    barrier: bool = False

    @property
    def end(self) -> int:
        return self.offset + self.bytes * self.count


@dataclass(frozen=True)
class SmemPlan:
    """Shared memory, bytes."""

    regions: tuple[Region, ...]
    bytes: int
    capacity: int

    def __post_init__(self) -> None:
        assert self.bytes <= self.capacity, f"{self.bytes} of {self.capacity} bytes"
        used = max((region.end for region in self.regions), default=0)
        assert used <= self.bytes, f"regions end at {used} of {self.bytes} bytes"


@dataclass(frozen=True)
class SoftmaxPlan:
    """The rescale schedule; see flashgen.plan.schedule for what its words mean."""

    passes: int = 1
    normalize: Literal["end", "each_step"] = "end"
    rescale: Literal["always", "lazy"] = "always"
    threshold: float = 0.0  # log2 units that the maximum may grow without a rescale
    outer: Literal["q", "kv"] = "q"  # which loop is outside
    materialize: bool = False  # `standard`: s and p in memory
    normalized: bool = True  # else the scores are the weights: no maximum, no sum
    sink: bool = False  # one more term in the sum of a row

    @property
    def phase(self) -> str:
        """The template that turns products into weights."""
        return "softmax" if self.normalized else "weights"

    @property
    def exponentials(self) -> int:
        """Of an element, besides what its score has."""
        return 1 if self.normalized else 0

    @property
    def steps(self) -> tuple[str, ...]:
        """What each pass over the keys is for, in order."""
        if self.passes > 1:
            return ("maximum_and_sum", "output") if self.passes == 2 else ("maximum", "sum", "output")
        return ("normalized",) if self.normalize == "each_step" else ("online",)


@dataclass(frozen=True)
class Argument:
    """One member of the emitted `struct Params`, in order; the runtime fills it by `kind` and `of`."""

    name: str  # the member
    cuda: str  # its type
    kind: Literal["tensor_map", "pointer", "strides", "array", "scalar"]
    of: str  # q, k, v, an output, a scratch; counter, halves; `argument` of a param or tensor; softmax_scale; a size as group, section
    box: tuple[int, int] = (0, 0)  # tensor_map: columns, rows
    comment: str = ""


# A number, a word (batch, heads, kv_heads, q_len, kv_len), or (word, n): how many pieces of n it takes to cover it.
Extent = int | str | tuple[str, int]


@dataclass(frozen=True)
class KernelPlan:
    """One kernel of a launch. All of them take the same Params, one after the other."""

    entry: str
    threads: int  # of a block
    shared_bytes: int
    blocks: tuple[Extent, ...]  # their product
    early: bool = False  # it may start before the kernel ahead of it ends, and waits itself (programmatic dependent launch)
    resident: int = 0  # blocks of a multiprocessor that take all the work among them, `blocks` being its pieces; 0: a block a piece


@dataclass(frozen=True)
class Scratch:
    """Memory that the kernels of a call hand to each other; it holds anything before and after."""

    name: str
    dtype: str
    shape: tuple[Extent, ...]


@dataclass(frozen=True)
class LaunchPlan:
    """How the kernels are launched."""

    kernels: tuple[KernelPlan, ...]  # in order
    dealt: bool  # query tiles, by a counter, so that blocks that finish early take more
    longest_first: bool  # query tiles with most keys first, in sections of heads that share the L2
    arguments: tuple[Argument, ...]
    scratch: tuple[Scratch, ...] = ()


@dataclass(frozen=True)
class Rejected:
    """A candidate that was not chosen, and why."""

    candidate: str
    reason: str


def row_outputs(spec: Spec) -> tuple[str, ...]:
    """The outputs of one number a query row; a head's maximum is made of its rows'."""
    return tuple(name for name in ("lse", "max") if name in spec.outputs or (name == "max" and "max_logit" in spec.outputs))


@dataclass(frozen=True)
class Plan:
    """How a spec runs on an arch."""

    spec: Spec
    arch: Arch
    skeleton: str  # template, as forward_sm90; `interpreter`: none
    expressions: Expressions
    holes: Holes
    ranges: KeyRanges
    tile: TilePlan
    pipeline: PipelinePlan
    smem: SmemPlan
    softmax: SoftmaxPlan
    launch: LaunchPlan
    cost: tuple[tuple[str, float], ...] = ()  # clocks a key step, by resource
    reasons: tuple[tuple[str, str], ...] = ()  # field, why
    rejected: tuple[Rejected, ...] = dataclasses.field(default=(), compare=False)

    @property
    def dtype(self) -> DType:
        return self.spec.element

    @property
    def out_dtype(self) -> DType:
        return self.spec.out_element

    @property
    def split(self) -> SplitPlan | None:
        """The planes of float32 operands; None for 16-bit ones."""
        return split(self.spec)

    @property
    def computed(self) -> KeyRanges:
        """The key tiles of rows that compute together: of a query tile, or of 64 rows where each warpgroup narrows them."""
        return dataclasses.replace(self.ranges, block_m=64) if self.pipeline.narrow else self.ranges

    @property
    def row_outputs(self) -> tuple[str, ...]:
        """What the attention writes of each query row: float32 [B, Hq, Sq]."""
        return row_outputs(self.spec)

    def to_json(self) -> dict[str, Any]:
        """Everything that explains the kernel, as JSON values."""
        groups = ("tile", "pipeline", "smem", "softmax", "launch")
        return {
            "spec": self.spec.to_json(),
            "arch": self.arch.name,
            "skeleton": self.skeleton,
            **{g: dataclasses.asdict(getattr(self, g)) for g in groups},
            "cost": dict(self.cost),
            "reasons": [{"field": field, "reason": reason} for field, reason in self.reasons],
            "ranges": self.ranges.to_json(),
            "rejected": [dataclasses.asdict(r) for r in self.rejected],
        }

    @cached_property
    def digest(self) -> str:
        """Eight hex digits that name this plan."""
        chosen = {k: v for k, v in self.to_json().items() if k not in ("rejected", "cost", "reasons")}
        return hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()[:8]
