"""A Kernel: one of a Program, with its own grid and shared memory and, if it attends, tile, workers, pipeline, dealing, key ranges."""

from dataclasses import dataclass, field, replace
from typing import Literal

from flashgen.expr import KeyRanges
from flashgen.expr.tiles.ranges import TileRanges
from flashgen.plan.elements import Elements
from flashgen.plan.sum_places import SumPlaces

WARPGROUP_ROWS = 64  # query rows that a warpgroup computes
ROW_BYTES = 128  # of a row of a tile that TMA swizzles: more columns are another block of rows


@dataclass(frozen=True)
class TilePlan:
    """The rows and columns that one step of a block multiplies."""

    block_m: int  # query rows of a tile
    block_n: int  # keys of a tile
    qk_columns: int  # of q and k in the products: the head dim in steps of 16, zero beyond it
    v_columns: int  # of v and o
    qk_stored: int  # columns that a row of q or k takes in shared memory
    v_stored: int
    qk_part: int = 0  # columns of q and k that one sum of a score covers; 0: all
    v_part: int = 0  # columns of v that one product takes; 0: all
    v_slices: int = 1  # blocks that share a query tile, each with so many columns of v and o
    query_tiles: int = 1  # of a block that takes several while a key tile stays

    @property
    def text(self) -> str:
        """Query rows x keys, for people."""
        return f"{self.block_m}x{self.block_n}"


@dataclass(frozen=True)
class WorkersPlan:
    """The warps of a block, and their registers."""

    warps: int  # that compute
    load_warps: int = 0  # that only load
    compute_registers: int = 0  # a thread, setmaxnreg; 0: as compiled
    load_registers: int = 0
    turns: bool = False  # warpgroups take turns at the tensor cores
    blocks: int = 1  # that shall be resident on a multiprocessor: a bound for the compiler's registers
    strands: int = 1  # of a block's key tiles, each a softmax of its own until they are joined
    in_turn: bool = False  # a warp takes strands one after the other; else each has warps of its own
    in_cluster: bool = False  # blocks of a cluster have strands each, of the same key tiles, and join them together
    each: int = 1  # strands that each warp of a cluster takes, one after the other

    @property
    def warpgroups(self) -> int:
        """Those that compute."""
        return self.warps // 4

    @property
    def load_warpgroups(self) -> int:
        """Those that only load."""
        return self.load_warps // 4

    @property
    def copying(self) -> str:
        """The template of who copies a key tile, of kernels whose warps all copy: all of a block, or the one warp that multiplies it."""
        if self.in_cluster:
            return "in_cluster" if self.each == 1 else "in_cluster_in_turn"
        return "by_block" if self.strands == 1 else "in_turn" if self.in_turn else "by_warp"

    @property
    def beside(self) -> int:
        """Strands that have warps of their own."""
        return 1 if self.in_turn else self.strands // self.each

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * (self.warps + self.load_warps)


# None in shared memory, one of its own, that of a key tile, that of q. Either: none, of a share where keys are cut, else of o itself.
OutputPlace = Literal["registers", "own", "keys", "queries", "either"]


@dataclass(frozen=True)
class PipelinePlan:
    """The tiles that are in flight or held, and where."""

    stages: int  # key and value tiles in shared memory
    query_stages: int = 1  # q of so many query tiles in shared memory
    overlap: bool = False  # of float32: a tile's scores and the product of the one before are in flight at once; of 16 bits they always are
    output_place: OutputPlace = "registers"  # that o leaves from, of forward_sm90: others have one way
    query_in_registers: bool = False
    in_place: bool = False  # float32 keys and values are split where they arrive in shared memory, else a kernel before has split them
    copy_bytes: int = 16  # of one copy into shared memory: what every row is aligned to
    multiplied: int = 0  # one exponential in so many by multiply-adds, beside the special function unit; 0: none

    @property
    def splitting(self) -> str:
        """The template of who splits float32 keys and values: a kernel before the attention, or two of its warpgroups in place."""
        return "in_place" if self.in_place else "before"

    @property
    def stages_text(self) -> str:
        """The number of stages, for people."""
        return f"{self.stages} stage{'s' if self.stages > 1 else ''}"

    @property
    def extras(self) -> list[str]:
        """The choices that tell candidates of one tile apart, besides stages and warps."""
        extras = {
            "o staged": self.output_place == "own",
            "o in place of keys": self.output_place == "keys",
            "q in registers": self.query_in_registers,
            "overlapped": self.overlap,
            "split in place": self.in_place,
        }
        extras[f"{self.query_stages} q tiles"] = self.query_stages > 1
        extras[f"an exponential in {self.multiplied} by multiply-adds"] = self.multiplied > 0
        return [text for text, holds in extras.items() if holds]


@dataclass(frozen=True, kw_only=True)
class SharePlan:
    """Into how many shares the key tiles of a query tile are cut, each for a block of its own; `flashgen.plan.geometry` counts them."""

    count: int  # as the spec says; 0: as many as the lengths ask for
    keys: int  # of a share at least, where lengths decide; a multiple of the keys of a tile
    pieces: int  # shares of all query tiles of a sequence from which on there are no more
    whole_call: bool  # the query tiles of all sequences count, not those of one alone
    even: bool  # about so many shares: as many as leave the fewest multiprocessors idle at the end
    block_m: int
    grouped: bool  # see DealingPlan
    block_n: int = 0  # keys of a tile, where only the device knows how long each sequence is; 0: all are as long as the call says

    @property
    def fewest_rows(self) -> int:
        """Query rows that count at least, where each sequence has its own number, for what a share has at least."""
        return 32

    @property
    def own(self) -> bool:
        """True if each sequence has its own number of shares: a list of work has them, which a kernel before the attention makes."""
        return self.block_n > 0


Listed = Literal["call", "mask", ""]  # what says which key tiles are in lists: a call; each pair of the tiles; there are none


@dataclass(frozen=True)
class DealingPlan:
    """The way in which query tiles, and the key tiles of each, come to blocks and warpgroups."""

    counter: bool = False  # a counter deals query tiles, so that blocks that finish early take more
    longest_first: bool = False  # query tiles with most keys first, in sections of heads that share the L2
    halves: bool = False  # query tiles are dealt by halves of the L2: blocks near one take the heads of one half of all heads
    narrow: bool = False  # a warpgroup skips the key tiles of a query tile that none of its own rows sees; of shares, if it has no rows
    shares: SharePlan | None = None  # a block takes a share of the key tiles of a query tile, and `combine` brings shares together
    grouped: bool = False  # rows of a query tile are those of all heads of a group, one token after the other: row = token * group + head
    listed: Listed = ""  # the key tiles of a query tile are those of a list, which a kernel before the attention makes

    @property
    def keys(self) -> str:
        """The template of what says which key tiles a query tile takes: a list, or ranges."""
        return "list" if self.listed else "ranges"

    @property
    def key_tiles(self) -> str:
        """The template of whose key tiles a warpgroup takes: those of the query tile, or those of its own rows."""
        return "own_tiles" if self.narrow else "shared_tiles"

    @property
    def extent(self) -> str:
        """The template of how many of a query tile's key tiles a block takes: all, or a share."""
        return "all_keys" if not self.shares else "share_of_work" if self.shares.own else "share_of_keys"

    @property
    def found(self) -> str:
        """The template of which query tile is the t-th where sequences lie one behind the other: by its place, or by a list of work."""
        return "work_list" if self.shares and self.shares.own else "places"

    @property
    def rows(self) -> str:
        """The template of what a row of a query tile is: a token of one head, or one of the heads of a group at a token."""
        return "rows_of_group" if self.grouped else "rows_of_head"


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
        """The byte behind its last."""
        return self.offset + self.bytes * self.count


@dataclass(frozen=True)
class SmemPlan:
    """Shared memory, bytes."""

    regions: tuple[Region, ...] = ()
    bytes: int = 0
    capacity: int = 0

    def __post_init__(self) -> None:
        assert self.bytes <= self.capacity, f"{self.bytes} of {self.capacity} bytes"
        used = max((region.end for region in self.regions), default=0)
        assert used <= self.bytes, f"regions end at {used} of {self.bytes} bytes"

    @classmethod
    def of(cls, *regions: Region) -> "SmemPlan":
        """Shared memory that holds these regions and nothing else."""
        end = max(region.end for region in regions)
        return cls(regions=regions, bytes=end, capacity=end)


@dataclass(frozen=True)
class Merging:
    """Blocks that merge the shares of all query rows, none where keys are one share: a row has a warp for as many as one reads at once."""

    shares: SharePlan
    warps: int  # of a block
    ahead: int  # shares that a warp reads at once


# A number; a word (batch, heads, kv_heads, q_len, kv_len, rows); (word, n): how many pieces of n it takes to cover it; shares of keys.
# ("places", n): of tiles of n query rows where sequences lie one behind the other, each with as many as it may need wherever it begins;
# ("key_places", n): the same of n keys.
Extent = int | str | tuple[str, int] | Elements | SharePlan | Merging | SumPlaces


@dataclass(frozen=True)
class Grid:
    """The threads of a block, and how many blocks there are."""

    threads: int
    blocks: tuple[Extent, ...]  # their product
    early: bool = False  # it may start before the kernel ahead of it ends, and waits itself (programmatic dependent launch)
    cluster: int = 1  # blocks, neighbours, that start together and reach each other's shared memory
    resident: int = 0  # blocks of a multiprocessor that take all the work among them, `blocks` being its pieces; 0: a block a piece


@dataclass(frozen=True)
class Kernel:
    """One kernel of a program. All of them take the same Params, one after the other."""

    entry: str
    grid: Grid
    smem: SmemPlan = field(default_factory=SmemPlan)


@dataclass(frozen=True, kw_only=True)
class Combine(Kernel):
    """The kernel that brings together what blocks know of their shares of the keys, row by row."""

    warps: int  # of a block
    slices: int  # of them on one row, each with every so many-th share; 0: as many as the call's shares ask for
    ahead: int  # shares that a warp reads at once


@dataclass(frozen=True, kw_only=True)
class Tiled(Kernel):
    """A kernel that multiplies tiles of queries, keys and values."""

    tile: TilePlan
    workers: WorkersPlan
    pipeline: PipelinePlan
    ranges: TileRanges


@dataclass(frozen=True, kw_only=True)
class Attention(Tiled):
    """The forward: a block takes query tiles, and meets the keys that they see."""

    dealing: DealingPlan
    ranges: KeyRanges  # of the keys that a query tile meets

    @property
    def share_tiles(self) -> int:
        """Key tiles of a share of a whole query tile at least, unless that makes too many."""
        shares = self.dealing.shares
        assert shares
        return 1 if shares.count else shares.keys // self.tile.block_n

    @property
    def warp_bytes(self) -> int:
        """Shared memory of a strand that has warps of its own."""
        return self.smem.bytes // self.workers.beside

    @property
    def computed(self) -> KeyRanges:
        """The key tiles of rows that compute together: of a query tile, or of a warpgroup's rows where each narrows them."""
        return replace(self.ranges, block_m=WARPGROUP_ROWS) if self.dealing.narrow and not self.dealing.shares else self.ranges
