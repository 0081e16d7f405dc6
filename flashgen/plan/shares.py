"""The demands of a call's lengths: that blocks share the keys of a query tile, and that its rows are those of all heads of a group."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from flashgen.arch import Arch
from flashgen.dtypes import ATTENTION_DTYPES, DTYPES
from flashgen.errors import PlanError
from flashgen.expr import analyse, lower
from flashgen.expr.language.nodes import names
from flashgen.plan.costs.model import of_arch
from flashgen.plan.engines.limits import up, v_slices
from flashgen.plan.geometry import Sizes, least_tiles
from flashgen.plan.kernel import WARPGROUP_ROWS, DealingPlan, Extent, SharePlan, TilePlan
from flashgen.plan.kernels.arguments import query_tiles
from flashgen.plan.kernels.combine import combine
from flashgen.plan.kernels.work_list import work_list
from flashgen.plan.program import Parts
from flashgen.plan.strands import IN_CLUSTER, STRAND_TILE, InCluster, strands
from flashgen.spec import Spec
from flashgen.spec.outputs import finished
from flashgen.spec.tensors import Tensor
from flashgen.theory.schedule import resolve

if TYPE_CHECKING:
    from flashgen.plan.strategy import Problem

FEW_ROWS = (16, 32, 64, 128)  # of a query tile that holds all rows of a key/value head, as few as they are
CHUNK_BYTES = 16  # of a tensor's row that one copy brings to shared memory
COSTS = "shares"  # the table of its numbers in flashgen.plan.costs


@dataclass(frozen=True)
class Demand:
    """The demands of a call's lengths on a plan, besides the class of its number of keys."""

    shared: bool = False  # blocks take shares of the key tiles of a query tile, which would be too few for a card
    rows: int = 0  # of FEW_ROWS: all that a key/value head has; 0: as many as fill tiles
    together: bool = False  # rows that fill tiles of warpgroups are those of all heads of a group
    strands: int = 1  # of a block's key tiles, each a softmax of its own until they are joined
    in_turn: bool = False  # a warp takes them one after the other, where there is work for all warps of a card; else each has its own
    cluster: int = 1  # blocks that have so many strands each, and join them together
    each: int = 1  # strands that each of their warps takes, one after the other
    alone: bool = False  # a multiprocessor has one block of a cluster, or few of strands in turn: its memory is for tiles on their way
    by_threads: bool = False  # threads read what a tensor holds at their queries and keys: its rows cannot be copied 16 bytes at a time

    @property
    def grouped(self) -> bool:
        """True if a query tile has the rows of all heads of a group, where the mask allows that."""
        return self.rows > 0 or self.together


WHOLE, _SHARED = Demand(), Demand(shared=True)
_GROUPS = (2, 4, 8, 16, 32)  # query heads a key/value head whose rows, token by token, fill tiles of 64
_FEW = tuple(Demand(shared=True, rows=rows) for rows in FEW_ROWS)


@lru_cache(256)
def refusal(spec: Spec) -> str | None:
    """The reason why no kernel takes the keys of a spec in shares; None if some do."""
    softmax = resolve(spec.schedule)
    if spec.geometry.packed and spec.blocks:
        return f"layout is {spec.layout}, and lists of blocks say which keys a query tile takes: of arrays [b, ...] they are shared"
    if spec.element.operand != "native":
        return f"dtype is {spec.dtype}: kernels of 16-bit operands take keys in shares"
    if not spec.softmax.normalized:
        return "softmax: none has no state that tells how much a share weighs"
    if softmax.steps != ("online",) or softmax.materialize or softmax.outer != "q":
        return "schedule: kernels of one pass that divide at the end take keys in shares"
    if rows := finished(spec.outputs):
        return f"outputs has {rows[0].name}, which is made of a sum over all keys of a row, and shares hand on the lse alone"
    return None


@lru_cache(256)
def groupable(spec: Spec) -> bool:
    """True if the query heads of a key/value head see the same keys, so that a tile may hold the rows of all of them."""
    mask, alike = lower(spec).mask, spec.blocks is None or spec.blocks.heads == "hk"
    return alike and "h" not in names(mask) and not analyse(mask, FEW_ROWS[0], FEW_ROWS[0], params=spec.params).pairings


def pinned(spec: Spec) -> Demand:
    """The demand of a spec alone. Raises PlanError for a number of shares where no kernel makes any."""
    if spec.split == 1:
        return WHOLE
    if spec.blocks and spec.blocks.m % FEW_ROWS[0] and refusal(spec) is None and groupable(spec):
        return _FEW[0]  # for lists of few queries: calls tell how many rows a group has of them
    if not isinstance(spec.split, int):
        return of_packed(spec, spec.group or 1) if spec.geometry.packed and refusal(spec) is None else WHOLE
    if reason := refusal(spec):
        raise PlanError(f"split is {spec.split}: {reason}. Leave split out")
    return _SHARED


def of_packed(spec: Spec, group: int) -> Demand:
    """The demand of sequences one behind the other, whatever their lengths: a list of work has shares where there are any."""
    return Demand(shared=True, together=group in _GROUPS and groupable(spec))


def most_rows(spec: Spec, arch: Arch) -> int:
    """The most of FEW_ROWS that shared memory holds beside two tiles of keys; 0 if none, or if blocks cannot share v's columns."""
    slices, step = v_slices(spec), spec.element.k_step
    qk, v = up(spec.head_dim.qk, step), up(spec.head_dim.v // slices, step)
    if spec.head_dim.v % (8 * slices):
        return 0
    sizes = ((rows * max(qk, v) + 2 * STRAND_TILE * (qk + v)) * spec.element.bytes for rows in FEW_ROWS)
    return max((rows for rows, size in zip(FEW_ROWS, sizes, strict=True) if size <= arch.shared_bytes), default=0)


def of_pairs(tensor: Tensor) -> bool:
    """True of a tensor of a number for each query and key, whose rows lie along the keys."""
    return "q_len" in tensor.shape and tensor.shape[-1] == "kv_len"


class Demands:
    """The demands of a spec's calls on an arch: a function of a sequence's own lengths and heads, and with `split: auto` of the batch too.

    >>> from flashgen.arch import by_name
    >>> Demands(Spec(head_dim=128, dtype="bfloat16"), by_name("sm_90a")).of(Sizes(batch=1, q_len=1, kv_len=8192, heads=32, kv_heads=8))
    Demand(shared=True, rows=16, together=False, strands=4, in_turn=False, cluster=8, each=1, alone=True, by_threads=False)
    """

    def __init__(self, spec: Spec, arch: Arch):
        self.spec, self.least, self.auto, self.multiprocessors = spec, pinned(spec), spec.split == "auto", arch.multiprocessors
        self.never = arch.on_cpu or spec.split == 1 or refusal(spec) is not None
        self.grouped, self.of_list = not self.never and groupable(spec), spec.blocks.m if spec.blocks else 0
        known = of_arch(arch, COSTS)
        own = "kv_len" in spec.geometry.own  # the arrays' length is not that of the sequences
        self.keys_a_row, self.tile_rows = 0 if own else int(known["keys_a_row"]), int(known["tile_rows"])
        self.cut = 2 * (known["call_keys"] if self.auto else known["keys"])
        self.strands, self.most_rows = strands(spec, arch, FEW_ROWS[0]), most_rows(spec, arch)
        stranded = () if spec.blocks else FEW_ROWS[:1] if self.auto else FEW_ROWS[:2]
        self.in_cluster = {rows: found for rows in stranded if (found := InCluster(spec, arch, rows)).exists}
        self.strand_keys = int(known["strand_share_keys"])
        self.beside, self.few_tiles = known["beside_keys"] * arch.multiprocessors, arch.multiprocessors / known["few_pieces"]
        self.waves, self.idle = known["waves"], known["idle"]
        copied = [t for t in spec.tensors if "wgmma" in arch.engines and t.dtype in ATTENTION_DTYPES and of_pairs(t)]
        self.element_bytes = {DTYPES[t.dtype].bytes for t in copied}

    def of(self, sizes: Sizes) -> Demand:
        """The demand of a call of these sizes."""
        found = self._shares(sizes)
        if found.grouped:  # threads read by themselves whatever the lengths are
            return found
        return replace(found, by_threads=True) if any(sizes.kv_len * size % CHUNK_BYTES for size in self.element_bytes) else found

    def _shares(self, sizes: Sizes) -> Demand:
        if self.never:
            return self.least
        if self.spec.geometry.packed:
            return of_packed(self.spec, sizes.group)
        rows = sizes.rows if self.grouped else sizes.q_len
        if self.grouped and self.of_list and sizes.q_len > self.of_list:  # a tile of all rows would have several lists
            return self._of_lists(sizes.group)
        if 0 < rows <= self.most_rows and sizes.kv_len >= self.keys_a_row * sizes.q_len:
            few = _FEW[bisect_left(FEW_ROWS, rows)]
            own = sizes.kv_heads if self.grouped else sizes.heads
            if found := self.in_cluster.get(few.rows):
                pieces = found.pieces(own, sizes.kv_len, sizes.batch)
                if not self.auto or pieces <= found.at_once:
                    return replace(few, **found.demands(pieces, sizes.kv_len))
            if few.rows == FEW_ROWS[0]:
                return self._stranded(few, own * sizes.batch, sizes.kv_len)
            return replace(few, together=self.grouped and few.rows >= WARPGROUP_ROWS and sizes.group in _GROUPS)
        tiles = -(-sizes.q_len // self.tile_rows) * sizes.heads * (sizes.batch if self.auto else 1)
        waves = -(-tiles // self.multiprocessors)
        if sizes.kv_len < self.cut or not 0 < waves <= self.waves:
            return self.least
        return _SHARED if 1 - tiles / (waves * self.multiprocessors) > self.idle else self.least

    def _stranded(self, few: Demand, tiles: int, kv_len: int) -> Demand:
        """The demand of few rows, so many query tiles in all. Whatever the batch, strands of a share have the same bits."""
        if self.spec.blocks:  # each finds its key tiles in the list: that pays for warps beside each other
            return replace(few, strands=min(IN_CLUSTER, self.strands))
        if self.auto:
            beside = tiles <= self.few_tiles and tiles * kv_len >= self.beside
            return replace(few, strands=min(4, self.strands)) if beside else few
        pieces = tiles * max(1, -(-kv_len // self.strand_keys))
        return replace(few, strands=self.strands, in_turn=self.strands > 1 and pieces > 2 * self.multiprocessors)

    def _of_lists(self, group: int) -> Demand:
        """The demand where the heads of a group have lists of fewer queries than a call has: a tile has the rows of one list."""
        rows = self.of_list * group
        if rows in FEW_ROWS and self.of_list < FEW_ROWS[2]:  # from there on a head alone fills tiles
            return _FEW[FEW_ROWS.index(rows)]
        if self.of_list % FEW_ROWS[0]:
            what = f"lists are of {self.of_list} queries, of the {group} query heads of a key/value head: {rows} rows"
            raise PlanError(f"{what}, and a tile has {', '.join(map(str, FEW_ROWS))}. Give blocks m so that it does, or a multiple of 16")
        return self.least


def planned(problem: "Problem", tile: TilePlan) -> SharePlan | None:
    """The shares of a query tile's key tiles, if the call asks for some."""
    spec, asked = problem.spec, problem.request.demand
    if not asked.shared:
        return None
    known, auto = of_arch(problem.arch, COSTS), spec.split == "auto"
    if asked.rows:
        rows = FEW_ROWS.index(asked.rows) + 1
        keys = known.by_count("few_call_keys", rows) if auto else known.by_count("few_keys", rows)
        most = known["warpgroup_pieces" if asked.together else "few_pieces"]
        if asked.cluster > 1:
            keys, most = (known.by_count(name, rows) for name in ("cluster_share_keys", "cluster_pieces"))
            most /= problem.arch.multiprocessors
        elif asked.strands > 1 and auto:
            most /= asked.strands
        elif asked.strands > 1 and not spec.blocks:  # lists have few keys
            keys = known["strand_share_keys"]
    else:
        keys = known["call_keys" if auto else "keys"]
        most = known["listed_pieces"] if spec.geometry.packed else known["pieces"]
    return SharePlan(
        count=spec.split if isinstance(spec.split, int) else 0,
        keys=-(-int(keys) // tile.block_n) * tile.block_n,
        pieces=round(most * problem.arch.multiprocessors),
        whole_call=auto and not spec.geometry.packed and asked.cluster == 1,
        even=not spec.geometry.packed and asked.cluster == 1,
        block_m=tile.block_m,
        grouped=problem.grouped,
        block_n=tile.block_n if spec.geometry.packed else 0,
    )


def dealt(problem: "Problem", tile: TilePlan, dealing: DealingPlan) -> DealingPlan:
    """The dealing of query tiles, with shares of their keys where the call asks for that, by lists where the spec has some."""
    shares, dealing = planned(problem, tile), replace(dealing, listed=problem.seen.listed)
    if not shares:
        return dealing
    first = dealing.longest_first and not problem.grouped
    narrow = shares.own and dealing.counter and tile.block_m > WARPGROUP_ROWS  # a single token has rows of one warpgroup
    return replace(dealing, shares=shares, grouped=problem.grouped, narrow=narrow, halves=False, longest_first=first)


def pieces(spec: Spec, tile: TilePlan, dealing: DealingPlan) -> tuple[Extent, ...]:
    """The pieces of work of an attention kernel."""
    if not dealing.shares:
        return query_tiles(spec, tile)
    if dealing.shares.own:  # at most: the list has no more than there are
        return (*query_tiles(spec, tile), dealing.shares.count or dealing.shares.pieces)
    rows: tuple[Extent, ...] = (("rows", tile.block_m), "kv_heads") if dealing.grouped else (("q_len", tile.block_m), "heads")
    slices = (tile.v_slices,) if tile.v_slices > 1 else ()
    return (*rows, "batch", *slices, dealing.shares)


def combined(problem: "Problem", plan: SharePlan | None, attention: Parts) -> Parts:
    """The attention with what runs before and after it where its blocks take shares of the keys."""
    if not plan:
        return attention
    parts = attention.followed(combine(problem.spec, plan, problem.arch.early))
    return parts.preceded(work_list(problem.arch.early)) if plan.own else parts


def reasons(dealing: DealingPlan) -> Iterator[tuple[str, str]]:
    """Why keys are shared, and rows are those of a group."""
    shares = dealing.shares
    if not shares:
        return
    if shares.own:
        fewest = f"{shares.block_n * least_tiles(shares, 1, 1)} keys or more of {shares.fewest_rows} query rows"
        whose = "a list of work, made on the device, cuts the keys of each sequence by its own lengths"
        yield "split", f"{whose}: shares of {fewest}, {shares.keys} of a whole query tile; combine merges them"
    elif shares.count:
        yield "split", f"split: the key tiles of a query tile are cut into {shares.count} shares, each for a block; combine merges them"
    else:
        whose = "all sequences" if shares.whole_call else "a sequence, whatever else is in the batch"
        least = f"shares of {shares.keys} keys or more, as long as the query tiles of {whose} make at most {shares.pieces}"
        yield "split", f"query tiles are too few for the card, so blocks take {least}; combine merges them"
    if dealing.grouped:
        yield "rows", "a query tile has the rows of all heads of a group, so that keys and values are read once"
