"""The lengths of a call, and what follows from them: shapes of scratch, blocks of a launch."""

import math
from dataclasses import dataclass

from flashgen.errors import CallError
from flashgen.plan.kernel import Extent, Kernel, SharePlan
from flashgen.plan.program import Scratch
from flashgen.spec.model import Tensor

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

    @property
    def rows(self) -> int:
        """Query rows of a key/value head: those of all heads of its group."""
        return self.q_len * self.group

    def shape(self, tensor: Tensor) -> tuple[int, ...]:
        """The shape of a tensor of the spec, with numbers for the words among its axes."""
        return tuple(map(self.axis, tensor.shape))

    def axis(self, axis: str | int) -> int:
        """The extent of an axis: a number, or a word for one."""
        words = {"b": self.batch, "hq": self.heads, "hk": self.kv_heads, "q_len": self.q_len, "kv_len": self.kv_len}
        words["q_words"] = -(-self.q_len // 32)
        return words[axis] if isinstance(axis, str) else axis

    def count(self, index: str) -> int:
        """The values of an index of the call: b, h, hk, q_idx or kv_idx."""
        counts = {"b": self.batch, "h": self.heads, "hk": self.kv_heads, "q_idx": self.q_len, "kv_idx": self.kv_len}
        return counts[index]


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
        case SharePlan():
            return shares(size, sizes)


def shares(plan: SharePlan, sizes: Sizes) -> int:
    """The most shares that a query tile's key tiles are cut into, in a call of these sizes."""
    if plan.count:
        return plan.count
    rows, heads = (sizes.rows, sizes.kv_heads) if plan.grouped else (sizes.q_len, sizes.heads)
    tiles = -(-rows // plan.block_m) * heads * (sizes.batch if plan.whole_call else 1)
    return max(1, min(-(-sizes.kv_len // plan.keys), -(-plan.pieces // tiles)))


def shape(scratch: Scratch, sizes: Sizes) -> tuple[int, ...]:
    """The shape of a scratch in a call."""
    return tuple(extent(size, sizes) for size in scratch.shape)


def block_count(kernel: Kernel, sizes: Sizes, multiprocessors: int) -> int:
    """Blocks of a launch. Raises CallError for more pieces of work than the kernel can count."""
    grid = kernel.grid
    pieces = math.prod(extent(size, sizes) for size in grid.blocks)
    if pieces > _MOST_PIECES:
        raise CallError(f"{pieces} blocks of {kernel.entry}, as {_product(kernel)}: a launch takes {_MOST_PIECES}. Split the batch")
    return min(pieces, multiprocessors * grid.resident) if grid.resident else pieces


def _product(kernel: Kernel) -> str:
    return " x ".join(map(extent_text, kernel.grid.blocks))


def extent_text(size: Extent) -> str:
    """An extent for people.

    >>> extent_text(("q_len", 128))
    'ceil(q_len / 128)'
    """
    match size:
        case (word, pieces):
            return f"ceil({word} / {pieces})"
        case SharePlan():
            return "shares"
    return str(size)
