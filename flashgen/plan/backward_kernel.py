"""The kernel of a backward's products, as data."""

from dataclasses import dataclass, field
from typing import Literal

from flashgen.expr import RowRanges
from flashgen.plan.kernel import ROW_BYTES, DealingPlan, Tiled
from flashgen.plan.sum_places import FEW_TILES

# What a thread keeps of an element until ds is known: its weight; that times the slope of its score; q.k, where some ask for gradients.
# Weighed: the second, or the third, where keys count for more or less after the softmax.
Elements = Literal["weights", "slopes", "gradients", "weighed", "weighed_gradients"]
Finish = Literal["after", "beside"]  # of who rounds the sums of dq: a kernel after, or warps of this one that neither load nor multiply


@dataclass(frozen=True, kw_only=True)
class WarpgroupsPlan:
    """The way of warpgroups through the query tiles of a key tile."""

    key_stages: int = 1  # key tiles in shared memory
    elements: Elements
    rows_held: bool = False  # lse and delta of a step are read ahead of its waits, and stay in registers
    ahead: bool = False  # they and its query tile are read in the step before, ahead of its additions to dq
    copied: bool = False  # dq is added by bulk copies from shared memory, else from registers
    head_shares: int  # blocks that have each a part of the query heads that share a key tile
    do_first: bool = False  # do of a step is asked for before its q: its place is free first
    in_turns: bool  # key tiles add to the sums of dq in their order, else in any
    finish: Finish = "after"

    @property
    def heads(self) -> str:
        """The template of which query heads a block takes of those that share its keys."""
        return "shared" if self.head_shares > 1 else "all"

    @property
    def rows(self) -> str:
        """The template of where lse and delta of a thread's queries are."""
        return "held" if self.rows_held else "shared"

    @property
    def known(self) -> str:
        """The template of when a warpgroup reads what it has to know of a step."""
        return "ahead" if self.ahead else "here"

    @property
    def sums(self) -> str:
        """The template of how a warp's part of dq gets to the sums in memory."""
        return "copied" if self.copied else "added"

    @property
    def ds(self) -> str:
        """The template of what the block that has ds, of two, computes besides it."""
        if self.elements in ("gradients", "weighed_gradients"):
            return "summed"
        return "weighed" if self.elements == "weighed" else "alone"


@dataclass(frozen=True, kw_only=True)
class Backward(Tiled):
    """The gradients: a block takes a key tile of a key/value head, and meets the query tiles of all its query heads."""

    ranges: RowRanges  # of the query tiles that a key tile meets
    dealing: DealingPlan = field(default_factory=DealingPlan)
    column_warps: int = 1  # of mma_sync: warps that share the same keys of dk and dv, each with its part of the columns
    warpgroups: WarpgroupsPlan | None = None  # of wgmma

    @property
    def head_shares(self) -> int:
        """Blocks that have each a part of the query heads that share a key tile."""
        return self.warpgroups.head_shares if self.warpgroups else 1

    @property
    def sums_order(self) -> str:
        """The template of the order in which key tiles add to the sums of dq: any, or their own."""
        return "own" if self.warpgroups and self.warpgroups.in_turns else "any"

    @property
    def finish(self) -> Finish:
        """The template of who rounds the sums of dq."""
        return self.warpgroups.finish if self.warpgroups else "after"

    @property
    def few_tiles(self) -> int:
        """The key tiles of a head with fewer of which its sums of dq have a place of their own, where warps beside round them."""
        return FEW_TILES

    @property
    def queries_share(self) -> int:
        """The queries of a tile whose dq a warpgroup multiplies: all, of 64 columns, or half of them where there are no more columns."""
        return self.tile.block_m if self.tile.qk_stored > ROW_BYTES // 2 else self.tile.block_m // 2
