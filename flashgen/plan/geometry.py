"""The lengths of a call, and what follows from them: shapes of scratch, blocks of a launch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from flashgen.errors import CallError
from flashgen.expr import evaluate
from flashgen.expr.language.read import axis_node
from flashgen.plan.elements import Elements
from flashgen.plan.kernel import Extent, Kernel, Merging, SharePlan
from flashgen.plan.program import Scratch
from flashgen.plan.sum_places import SumPlaces
from flashgen.spec import Spec, axes
from flashgen.spec.tensors import Tensor

MORE_SHARES, SHARE_COST = 8, 0.01  # than fill a card once, that are tried; what one more costs, of all
ROWS_STEP = 16  # in which rows of a query tile count for what a share of its keys has at least
_MOST_PIECES = 2**31 - 1  # of work: a kernel counts them in an int


@dataclass(frozen=True)
class Sizes:
    """The lengths of a call."""

    batch: int
    q_len: int  # of each sequence, or of all together where they lie one behind the other
    kv_len: int  # that k and v have place for, likewise
    heads: int  # of q
    kv_heads: int
    pages: int = 0  # of k and v, of which kv_len is what a sequence may have; 0: they are not in pages
    page: int = 1  # keys of one
    bound: tuple[tuple[str, int], ...] = ()  # the names of axes that arrays bind
    listed: int = 0  # keys of a list at most, where a call lists numbers of blocks; 0: of any number
    summed: tuple[tuple[str, int], ...] = ()  # the elements of each tensor whose gradient is summed in integers

    @property
    def group(self) -> int:
        """Query heads a key/value head."""
        return self.heads // self.kv_heads

    @property
    def rows(self) -> int:
        """Query rows of a key/value head: those of all heads of its group."""
        return self.q_len * self.group

    @property
    def ends(self) -> int:
        """The beginnings of sequences that lie one behind the other, and the end of the last."""
        return self.batch + 1

    def shape(self, tensor: Tensor) -> tuple[int, ...]:
        """The shape of a tensor of the spec, with numbers for the words among its axes."""
        return tuple(map(self.axis, tensor.shape))

    def axis(self, axis: str | int) -> int:
        """The extent of an axis: a number, a word for one, or a word and by how many it is divided, rounded up."""
        words = {"b": self.batch, "hq": self.heads, "hk": self.kv_heads, "q_len": self.q_len, "kv_len": self.kv_len}
        words |= dict(self.bound) | {"b + 1": self.batch + 1, "pages": self.kv_len // self.page}
        if isinstance(axis, int) or axis in words:
            return axis if isinstance(axis, int) else words[axis]
        word, entries = axes.pieces(axis)
        return -(-words[word] // entries) if word != axis else max(0, int(evaluate(axis_node(axis), words)))

    def binding(self, tensor: Tensor, entries: int) -> "Sizes":
        """These sizes with so many entries along each axis whose name the tensor binds, or that others do and it counts with."""
        names = frozenset[str]().union(*map(axes.names, tensor.shape)) - {*axes.WORDS}
        return replace(self, bound=tuple((name, entries) for name in sorted(names)))

    def count(self, index: str) -> int:
        """The values of an index of the call: b, h, hk, q_idx or kv_idx."""
        counts = {"b": self.batch, "h": self.heads, "hk": self.kv_heads, "q_idx": self.q_len, "kv_idx": self.kv_len}
        return counts[index]


def sizes_of(spec: Spec, q: tuple[int, ...], k: tuple[int, ...], lengths: Mapping[str, tuple[int, ...]]) -> Sizes:
    """The sizes of a call on q [B, Sq, Hq, D], if packed [1, total_q, Hq, D], k likewise or [pages, page, Hk, D], and arrays of these
    shapes, by the names in `spec.sizing`."""
    batch = lengths["cu_seqlens_q"][0] - 1 if spec.geometry.packed else q[0]
    listed = most_listed(spec, lengths)
    if not spec.page:
        return Sizes(batch=batch, q_len=q[1], kv_len=k[1], heads=q[2], kv_heads=k[2], listed=listed)
    kv_len = lengths["block_table"][1] * spec.page
    return Sizes(batch=batch, q_len=q[1], kv_len=kv_len, heads=q[2], kv_heads=k[2], pages=k[0], page=spec.page, listed=listed)


def most_listed(spec: Spec, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """The keys of a list at most, where a call lists numbers of blocks; 0: of any number. `shapes`: of its arrays, by name."""
    return shapes[spec.blocks.lists][-1] * spec.blocks.n if spec.blocks and spec.blocks.lists in spec.sizing else 0


def shape_words(spec: Spec, role: str, heads: str, columns: str) -> tuple[str, ...]:
    """The axes of q, k, v or o in words.

    >>> shape_words(Spec(head_dim=64, dtype="float16", cache={"page": 16}), "k", heads="Hk", columns="64")
    ('pages', '16', 'Hk', '64')
    """
    batch, length = "B", "Sk" if role in ("k", "v") else "Sq"
    if spec.page and length == "Sk":
        batch, length = "pages", str(spec.page)
    elif spec.order.packed:
        length = {"Sq": "total_q", "Sk": "total_k"}[length]
    return spec.order_of(role).arranged(b=batch, s=length, h=heads, d=columns)


def row_words(spec: Spec, sizes: Sizes) -> dict[str, int]:
    """The extents of the axes of an output of rows, by their words."""
    words = {"b": sizes.batch, "hq": sizes.heads, "q_len": sizes.q_len}
    return {word: n for word, n in words.items() if word != "b" or not spec.geometry.packed}


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
        case ("places", rows):
            return sizes.q_len // int(rows) + sizes.batch
        case ("key_places", keys):
            return sizes.kv_len // int(keys) + sizes.batch
        case (word, pieces):
            return -(-extent(word, sizes) // pieces)
        case Elements(of):
            return dict(sizes.summed)[of]
        case SharePlan():
            return states(size, sizes) if size.own else shares(size, sizes)
        case Merging():
            return merging(size, sizes)
        case SumPlaces():
            return size.of(sizes.kv_heads * sizes.batch, sizes.kv_len)


def merging(plan: Merging, sizes: Sizes) -> int:
    """The blocks that merge the shares of a call."""
    count, slices = shares(plan.shares, sizes), 1
    while slices < plan.warps and slices * plan.ahead < count:
        slices *= 2
    return 0 if count == 1 else -(-sizes.batch * sizes.heads * sizes.q_len * slices // plan.warps)


def least_tiles(plan: SharePlan, q_len: int, group: int) -> int:
    """Key tiles of a share at least, of a sequence of so many queries: few rows have a small state beside their keys."""
    if plan.count:
        return 1
    rows = max(plan.fewest_rows, -(-q_len * (group if plan.grouped else 1) // ROWS_STEP) * ROWS_STEP)
    return max(1, plan.keys // plan.block_n * min(rows, plan.block_m) // plan.block_m)


def states(plan: SharePlan, sizes: Sizes) -> int:
    """Rows of shares that a call of sequences one behind the other has at most, whatever their lengths."""
    most = shares(plan, replace(sizes, q_len=1))
    if most == 1:
        return 1  # which nobody writes
    rows = most * sizes.q_len * sizes.heads
    return rows if plan.count else min(rows, sizes.batch * plan.pieces * plan.block_m)


def shares(plan: SharePlan, sizes: Sizes) -> int:
    """The most shares that a query tile's key tiles are cut into, in a call of these sizes, or in a sequence where lists have them."""
    if plan.count:
        return plan.count
    rows, heads = (sizes.rows, sizes.kv_heads) if plan.grouped else (sizes.q_len, sizes.heads)
    tiles = -(-rows // plan.block_m) * heads * (sizes.batch if plan.whole_call else 1)
    if plan.own:
        key_tiles = -(-sizes.kv_len // plan.block_n)
        return max(1, min(-(-key_tiles // least_tiles(plan, sizes.q_len, sizes.group)), plan.pieces // max(1, tiles)))
    count = -(-plan.pieces // tiles)
    if plan.even:
        fewest = max(1, plan.pieces // tiles)
        count = min(
            range(fewest, fewest + MORE_SHARES), key=lambda n: -(-tiles * n // plan.pieces) * plan.pieces / (tiles * n) + SHARE_COST * n
        )
    keys = min(sizes.kv_len, sizes.listed or sizes.kv_len)  # of a query tile
    return max(1, min(-(-keys // plan.keys), count))


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
        case ("places", rows):
            return f"(q_len / {rows} + batch)"
        case ("key_places", keys):
            return f"(kv_len / {keys} + batch)"
        case (word, pieces):
            return f"ceil({word} / {pieces})"
        case Elements(of):
            return f"elements of {of}"
        case SharePlan():
            return "states" if size.own else "shares"
        case Merging(warps=warps):
            return f"ceil(batch * heads * q_len * warps of a row / {warps})"
        case SumPlaces():
            return "places of key/value heads"
    return str(size)
