"""A Program: how a spec runs on an architecture, as kernels one after another. Templates and the interpreter read nothing else."""

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from flashgen.arch import Arch
from flashgen.dtypes import DType
from flashgen.expr import Expressions, Holes
from flashgen.plan.embed import ByToken, Embed, Unembed
from flashgen.plan.kernel import Attention, Combine, DealingPlan, Extent, Kernel, Region, Tiled
from flashgen.plan.operands.planes import PlanesPlan, planes
from flashgen.plan.plain import of_argument, of_kernel
from flashgen.spec import Spec
from flashgen.spec.embedding import NO_ROTARY, Rotary
from flashgen.spec.outputs import of_rows
from flashgen.theory.schedule import SoftmaxPlan

MOST_LOOPS = 4  # over ranges of key tiles, each with the text of a step: with more of them compilers take seconds
ELEMENTS = ("float16", "bfloat16", "uint8")  # dtypes of arrays whose elements have a type of their own in the text


@dataclass(frozen=True)
class Argument:
    """One member of the emitted `struct Params`, in order; the runtime fills it by `kind` and `of`."""

    name: str  # the member
    cuda: str  # its type
    kind: Literal["tensor_map", "pointer", "strides", "array", "sums", "scalar", "extent"]
    of: str  # q, k, v, an output, a scratch; counter, halves; `argument` of a param or tensor; softmax_scale; a size as group, section
    box: tuple[int, int] = (0, 0)  # tensor_map: columns, rows
    grouped: bool = False  # tensor_map: these rows are those of all heads of a group, one token after the other
    comment: str = ""
    rank: int = 0  # array, sums: its axes; extent: which


def member_types(spec: Spec, kind: str) -> tuple[str, ...]:
    """The templates of the types that an argument of a kind wants: its own, and those that it is made of."""
    match kind:
        case "strides":
            return ("strides", "key_strides") if spec.geometry.separate_keys else ("strides",)
        case "array":
            own = dict.fromkeys(tensor.dtype for tensor in spec.tensors if tensor.dtype in ELEMENTS)
            return (*own, "array")
    return (kind,) if kind in ("tensor_map", "sums") else ()


@dataclass(frozen=True)
class Scratch:
    """Memory that the kernels of a call hand to each other; it holds anything before and after."""

    name: str
    dtype: str
    shape: tuple[Extent, ...]


@dataclass(frozen=True)
class Parts:
    """Kernels in the order of a call, the members of the Params that they share, the memory that they hand on."""

    kernels: tuple[Kernel, ...]
    arguments: tuple[Argument, ...]
    scratch: tuple[Scratch, ...] = ()

    def preceded(self, by: "Parts") -> "Parts":
        """These kernels after others, whose members and memory come last."""
        return Parts((*by.kernels, *self.kernels), (*self.arguments, *by.arguments), (*self.scratch, *by.scratch))

    def followed(self, by: "Parts") -> "Parts":
        """These kernels before others."""
        return Parts((*self.kernels, *by.kernels), (*self.arguments, *by.arguments), (*self.scratch, *by.scratch))


@dataclass(frozen=True)
class Rejected:
    """A candidate that was not chosen, and why."""

    candidate: str
    reason: str
    block_m: int  # query rows of its tile


@dataclass(frozen=True)
class Decision:
    """The reasons why a program is as it is."""

    cost: tuple[tuple[str, float], ...] = ()  # clocks a key step, by resource
    reasons: tuple[tuple[str, str], ...] = ()  # field, why
    rejected: tuple[Rejected, ...] = dataclasses.field(default=(), compare=False)


@dataclass(frozen=True, kw_only=True)
class Program:
    """The kernels by which a spec runs on an arch, with all that they share.

    >>> [kernel.entry for kernel in plan(load("specs/causal.yaml"), "sm_90a").kernels]
    ['forward']
    """

    spec: Spec
    arch: Arch
    skeleton: str  # template, as forward_sm90; `interpreter`: none
    expressions: Expressions
    holes: Holes
    softmax: SoftmaxPlan
    kernels: tuple[Kernel, ...]  # in the order of a call; none is launched on the CPU, whose interpreter reads the first
    arguments: tuple[Argument, ...]  # of all kernels
    scratch: tuple[Scratch, ...]
    decision: Decision

    @cached_property
    def attention(self) -> Attention:
        """The kernel that attends, the first of several."""
        return self.attentions[0]

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """The kernels that attend: one, unless the schedule writes scores to memory; none in a backward."""
        return tuple(kernel for kernel in self.kernels if isinstance(kernel, Attention))

    @property
    def shares(self) -> Extent:
        """The shares that blocks take of a sequence's keys; of a backward one."""
        return (self.attention.dealing.shares if self.attentions else None) or 1

    @property
    def tiled(self) -> tuple[Tiled, ...]:
        """The kernels that multiply tiles."""
        return tuple(kernel for kernel in self.kernels if isinstance(kernel, Tiled))

    @property
    def main(self) -> Tiled:
        """The first kernel that multiplies tiles, forward or backward."""
        return self.tiled[0]

    @property
    def dealing(self) -> DealingPlan:
        """The way in which tiles are dealt to the kernel that attends; the usual one where there is none, as in a backward."""
        return self.attention.dealing if self.attentions else DealingPlan()

    @property
    def combine(self) -> Combine | None:
        """The kernel that brings shares of keys together, where blocks take shares."""
        return next((kernel for kernel in self.kernels if isinstance(kernel, Combine)), None)

    @property
    def result(self) -> str:
        """The template of how results leave forward_sm80: as o; where keys are cut, as that of a share; from the blocks of a cluster."""
        return "output" if not self.dealing.shares else "output_in_cluster" if self.main.workers.in_cluster else "output_either"

    @property
    def lists_from(self) -> str:
        """The template of what says which key tiles are in lists: indices or a bitmap that a call gives, or the mask."""
        return self.spec.blocks.template if self.spec.blocks else "mask"

    @property
    def walk(self) -> str:
        """The template of how one goes through the key tiles of a query tile: a loop for each run, or from each tile to the next."""
        many = any(len(kernel.ranges.loops) > MOST_LOOPS for kernel in self.attentions)
        return "one_by_one" if self.dealing.listed or many else "by_ranges"

    @property
    def telling(self) -> str:
        """The template of how those who compute on Hopper come from key tile to key tile: who loads tells them, or they find them."""
        return "told" if self.dealing.listed and self.attention.workers.turns else "found"

    @property
    def fetched(self) -> str:
        """The template of how those fetch key tiles who do not test the mask: each range, or fewer where there are many."""
        return "as_dealt" if self.dealing.listed or self.walk == "by_ranges" else "joined"

    @property
    def looked_at(self) -> str:
        """The template of the axes along which the tiles of a mask that are looked at differ, besides queries and keys."""
        *axes, _, _ = self.by_entry["seen_tiles"].grid.blocks
        return "_".join(map(str, axes)) or "alike"

    @property
    def work_list(self) -> bool:
        """True if a list of work, made on the device, has the shares of the keys of each sequence."""
        return self.dealing.shares is not None and self.dealing.shares.own

    @property
    def embedding(self) -> tuple[Embed, ...]:
        """The kernels that write queries and keys anew before the attention."""
        return tuple(kernel for kernel in self.kernels if type(kernel) is Embed)

    @property
    def unembedding(self) -> tuple[Unembed, ...]:
        """The kernels that bring gradients of those back, after a backward."""
        return tuple(kernel for kernel in self.kernels if isinstance(kernel, Unembed))

    @property
    def finishing(self) -> tuple[ByToken, ...]:
        """The kernel that makes o of what the attention gives, where both are outputs."""
        return tuple(kernel for kernel in self.kernels if isinstance(kernel, ByToken) and not isinstance(kernel, Embed))

    @property
    def turning(self) -> Rotary:
        """The rotary embedding, or one that turns nothing."""
        return self.spec.rotary or NO_ROTARY

    @property
    def by_entry(self) -> dict[str, Kernel]:
        """The kernels by name."""
        return {kernel.entry: kernel for kernel in self.kernels}

    @property
    def regions(self) -> tuple[Region, ...]:
        """The named pieces of shared memory of all kernels that multiply tiles."""
        return tuple(region for kernel in self.tiled for region in kernel.smem.regions)

    @property
    def by_symbol(self) -> dict[str, Region]:
        """The same by the names that the emitted text has for them."""
        return {region.symbol: region for region in self.regions}

    @property
    def types(self) -> tuple[str, ...]:
        """The templates of what members of Params are made of, in order."""
        own = tuple(name for kind in dict.fromkeys(a.kind for a in self.arguments) for name in member_types(self.spec, kind))
        return (*own, "exact_sum") if "round_sums" in self.by_entry else own

    @property
    def launched(self) -> bool:
        """True if its kernels run on a GPU."""
        return bool(self.arguments)

    @property
    def dtype(self) -> DType:
        """The row of the dtype of q, k and v."""
        return self.spec.element

    @property
    def out_dtype(self) -> DType:
        """The row of the dtype of o."""
        return self.spec.out_element

    @property
    def v_dim(self) -> int:
        """Columns of v and o that a block has."""
        return self.spec.head_dim.v // self.main.tile.v_slices

    @property
    def box_keys(self) -> int:
        """Keys that a tensor map of k moves at once."""
        return next(argument.box[1] for argument in self.arguments if argument.name == "k")

    @property
    def planes(self) -> PlanesPlan | None:
        """The planes of float32 operands; None for 16-bit ones."""
        return planes(self.spec)

    @property
    def row_outputs(self) -> tuple[str, ...]:
        """The outputs that the attention writes of each query row: float32 [B, Hq, Sq]."""
        return of_rows(self.spec.outputs)

    @property
    def indexes_rows(self) -> bool:
        """True if something is written by the index of a query row."""
        return bool(self.row_outputs or self.combine)

    @property
    def counts_sink(self) -> bool:
        """True if the attention counts the sink; of shares, `combine` does, once."""
        return self.softmax.sink and not self.combine

    @property
    def reads_log2_e(self) -> bool:
        """True if something natural becomes log2 units in its text."""
        return self.softmax.sink or self.combine is not None

    def to_json(self) -> dict[str, Any]:
        """Everything that explains the program, as JSON values."""
        return {
            "spec": self.spec.to_json(),
            "arch": self.arch.name,
            "skeleton": self.skeleton,
            "softmax": dataclasses.asdict(self.softmax),
            "kernels": [of_kernel(kernel) for kernel in self.kernels],
            "arguments": [of_argument(argument) for argument in self.arguments],
            "scratch": [dataclasses.asdict(scratch) for scratch in self.scratch],
            "ranges": self.main.ranges.to_json(),
            "cost": dict(self.decision.cost),
            "reasons": [{"field": field, "reason": reason} for field, reason in self.decision.reasons],
            "rejected": [dataclasses.asdict(r) for r in self.decision.rejected],
        }

    @cached_property
    def digest(self) -> str:
        """Eight hex digits that name this program."""
        chosen = {k: v for k, v in self.to_json().items() if k not in ("rejected", "cost", "reasons")}
        return hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()[:8]
