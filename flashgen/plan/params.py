"""What a launch is given besides arrays, and the emitted `struct Params` as a NumPy record: the runtime and the emulator fill it in."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from flashgen.dtypes import float32, float32_fault
from flashgen.errors import CallError
from flashgen.expr import evaluate
from flashgen.expr.language.nodes import names
from flashgen.plan.model import Argument, Extent, KernelPlan, Plan, Scratch
from flashgen.spec.model import Tensor

STRIDES = np.dtype([(axis, "<i8") for axis in ("batch", "head", "row", "column")])
_SCALARS = {"float": np.dtype("<f4"), "int": np.dtype("<i4")}
_TENSOR_MAP, _TENSOR_MAP_ALIGNMENT = np.dtype((np.uint8, 128)), 64
_SECTION_BYTES = 32 << 20  # of keys and values of a section of heads, which stay in the L2 together
_HALF_BYTES, _SEEN = 8 << 20, 1024  # the same of either half of the L2, of keys that rows see at a time where it counts
_SECTION_HEADS = (16, 32)  # at most, of short and of long sequences: with more the loads spread too far, as measured
_WIDE = 512  # columns of k and v, from which on more heads are faster, the L2 or not, as measured: up to the first of these,
_WIDE_BYTES = 128 << 20  # or so many bytes
_MOST_PIECES = 2**31 - 1  # of work: a kernel counts them in an int


@dataclass(frozen=True)
class Sizes:
    """The lengths of a call."""

    batch: int
    q_len: int
    kv_len: int
    heads: int  # of q
    kv_heads: int

    @property
    def group(self) -> int:
        """Query heads a key/value head."""
        return self.heads // self.kv_heads

    def shape(self, tensor: Tensor) -> tuple[int, ...]:
        """Of a tensor of the spec: what the words among its axes are."""
        words = {"b": self.batch, "hq": self.heads, "hk": self.kv_heads, "q_len": self.q_len, "kv_len": self.kv_len}
        words["q_words"] = -(-self.q_len // 32)
        return tuple(words[n] if isinstance(n, str) else n for n in tensor.shape)

    def count(self, index: str) -> int:
        """The values of an index of the call: b, h, hk, q_idx or kv_idx."""
        counts = {"b": self.batch, "h": self.heads, "hk": self.kv_heads, "q_idx": self.q_len, "kv_idx": self.kv_len}
        return counts[index]


def scalars(plan: Plan, sizes: Sizes, params: Mapping[str, int | float]) -> dict[str, int | float]:
    """What the scalar members of Params hold, by what each is `of`. `params`: those of the spec, by name, all of them."""
    arguments = {p.argument: params[p.name] for p in plan.spec.params}
    return {**arguments, "softmax_scale": softmax_scale(plan, params), **of_sizes(plan, sizes)}


def of_sizes(plan: Plan, sizes: Sizes) -> dict[str, int]:
    """Those of them that follow from the lengths of a call."""
    return {
        "q_len": sizes.q_len,
        "kv_len": sizes.kv_len,
        "heads": sizes.heads,
        "batch": sizes.batch,
        "group": sizes.group,
        "section": _section(plan, sizes) if plan.launch.longest_first else 1,
    }


def softmax_scale(plan: Plan, params: Mapping[str, int | float]) -> float:
    """The factor of q.k. Raises CallError for one that float32 does not hold."""
    scale = float(evaluate(plan.expressions.scale, {p.name: params[p.name] for p in plan.spec.params}))
    if fault := float32_fault(scale):
        given = ", ".join(f"{name} = {params[name]}" for name in sorted(names(plan.expressions.scale)))
        raise CallError(f"scale, {plan.spec.scale}, is {scale} where {given}: {fault}")
    return float32(scale)


def _section(plan: Plan, sizes: Sizes) -> int:
    """Heads of a section; all sections have about as many: a small last one would keep few multiprocessors busy."""
    columns, halves = plan.spec.head_dim.qk + plan.spec.head_dim.v, plan.pipeline.halves
    least, most = _SECTION_HEADS
    most = least if columns >= _WIDE else min(max(least, sizes.kv_len // 32), most)
    room = _WIDE_BYTES if columns >= _WIDE else _HALF_BYTES if halves else _SECTION_BYTES
    keys = min(sizes.kv_len, _SEEN) if halves else sizes.kv_len
    fit = room // max(1, keys * columns * plan.dtype.bytes) * sizes.group
    heads = -(-sizes.heads * sizes.batch // (2 if halves else 1))
    sections = -(-heads // max(1, min(fit, most)))
    return -(-heads // sections)


def steps(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """The strides that a kernel is given of a tensor: 0 along an axis of extent 1, which so broadcasts, and 0 in one without elements, as
    no index is inside of that."""
    return tuple(0 if n == 1 or 0 in shape else stride for n, stride in zip(shape, strides, strict=True))


def extent(size: Extent, sizes: Sizes) -> int:
    """The number that an extent is for these sizes.

    >>> extent(("q_len", 128), Sizes(batch=1, q_len=200, kv_len=200, heads=8, kv_heads=8))
    2
    """
    match size:
        case int():
            return size
        case str():
            return int(getattr(sizes, size))
        case (word, pieces):
            return -(-extent(word, sizes) // pieces)


def shape(scratch: Scratch, sizes: Sizes) -> tuple[int, ...]:
    """The shape of a scratch in a call."""
    return tuple(extent(size, sizes) for size in scratch.shape)


def grid(kernel: KernelPlan, sizes: Sizes, multiprocessors: int) -> int:
    """Blocks of a launch. Raises CallError for more pieces of work than the kernel can count."""
    pieces = math.prod(extent(size, sizes) for size in kernel.blocks)
    if pieces > _MOST_PIECES:
        raise CallError(f"{pieces} blocks of {kernel.entry}, as {_product(kernel)}: a launch takes {_MOST_PIECES}. Split the batch")
    return min(pieces, multiprocessors * kernel.resident) if kernel.resident else pieces


def _product(kernel: KernelPlan) -> str:
    return " x ".join(f"ceil({size[0]} / {size[1]})" if isinstance(size, tuple) else str(size) for size in kernel.blocks)


@lru_cache(256)
def record_dtype(arguments: tuple[Argument, ...]) -> np.dtype[Any]:
    """The C layout of Params: a field an argument, in order, padding included.

    >>> record_dtype((Argument("lse", "float*", "pointer", "lse"), Argument("q_len", "int", "scalar", "q_len"))).itemsize
    16
    """
    names, formats, offsets, end, alignment = [], [], [], 0, 1
    for argument in arguments:
        member, align = _member(argument)
        offset = -(-end // align) * align
        names.append(argument.name)
        formats.append(member)
        offsets.append(offset)
        end, alignment = offset + member.itemsize, max(alignment, align)
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": -(-end // alignment) * alignment})


def _member(argument: Argument) -> tuple[np.dtype[Any], int]:
    """Its layout and its alignment in bytes."""
    match argument.kind:
        case "tensor_map":
            return _TENSOR_MAP, _TENSOR_MAP_ALIGNMENT
        case "pointer":
            return np.dtype("<u8"), 8
        case "strides":
            return STRIDES, 8
        case "array":
            rank = re.fullmatch(r"Array<\w+, (\d+)>", argument.cuda)
            assert rank, argument.cuda
            return np.dtype([("data", "<u8"), ("strides", "<i8", (int(rank[1]),))]), 8
        case "scalar":
            return _SCALARS[argument.cuda], 4
