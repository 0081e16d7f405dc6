"""Strands of the keys of few query rows: how many there are follows from spec and arch, which warps have them from the call."""

from typing import TYPE_CHECKING, Any

from flashgen.arch import Arch
from flashgen.plan.costs.model import of_arch
from flashgen.plan.engines.limits import up, v_slices
from flashgen.spec import Spec

if TYPE_CHECKING:
    from flashgen.plan.strategy import Problem

STRAND_TILE = 16  # keys of a tile where there are strands: o has other bits with other tiles
IN_CLUSTER = 4  # warps of a block where each has a strand: where they are joined, each has a lane
PAIR = 8  # warps of a block where each has two, of clusters of two blocks
FEW_IN_TURN = 3  # of a multiprocessor that take strands in turn, up to which more of each is on its way
FEWEST, WIDEST = 16, 128  # rows of a tile; columns of v, of which a warp holds o of 32 rows
RESERVED_BYTES = 1024  # of shared memory, the system's, a block
RESIDENT_WARPS = 8  # of a multiprocessor: two a scheduler, one multiplies while the other computes; their threads can have 255 registers
STATE_PADDING = 8  # numbers behind a row of o: its maximum and sums, and rows begin in different banks of shared memory
COSTS = "shares"


def strands(spec: Spec, arch: Arch, rows: int) -> int:
    """The strands of a share where query rows are few: as many as there is shared memory for, if warps beside each other have them."""
    if spec.block.m or spec.block.n or spec.stages or spec.warps or isinstance(spec.split, int):
        return 1
    q, keys = _columns(spec)
    sizes = ((n, n * (rows * q + 2 * STRAND_TILE * keys) * spec.element.bytes) for n in (1, 2, 4, 8))
    return max(n for n, size in sizes if size <= arch.shared_bytes or n == 1)


def strand_tiles(problem: "Problem") -> tuple[int, ...]:
    """The numbers of keys that tiles of strands may have: one where bits shall be the same beside each other and in turn."""
    return (STRAND_TILE, 2 * STRAND_TILE) if problem.request.demand.alone and problem.spec.split == "auto" else (STRAND_TILE,)


def _columns(spec: Spec) -> tuple[int, int]:
    """The columns of q, whose place o takes, and of k and v, as a block has them."""
    qk, v = up(spec.head_dim.qk, spec.element.k_step), up(spec.head_dim.v // v_slices(spec), spec.element.k_step)
    return max(qk, v), qk + v


class InCluster:
    """The warps that have the strands of query tiles of so many rows where blocks may be a cluster. Bits are the same whichever do.

    >>> from flashgen.arch import by_name
    >>> InCluster(Spec(head_dim=128, dtype="bfloat16"), by_name("sm_90a"), 16).demands(20, kv_len=8192)
    {'strands': 4, 'cluster': 8, 'alone': False}
    """

    def __init__(self, spec: Spec, arch: Arch, rows: int):
        known, (q, keys) = of_arch(arch, COSTS), _columns(spec)
        self.cluster, self.multiprocessors = arch.cluster, arch.multiprocessors
        self.exists = arch.cluster > 1 and strands(spec, arch, rows) >= IN_CLUSTER and (rows == FEWEST or q <= WIDEST)
        self.share_keys = int(known.by_count("cluster_share_keys", rows // FEWEST))
        self.most_shares = int(known.by_count("cluster_pieces", rows // FEWEST))
        state, tiles = rows * (q + STATE_PADDING) * 4, 2 * STRAND_TILE * keys * spec.element.bytes  # a state waits, one is where tiles were
        self.pairs = PAIR * (state + max(state, tiles)) <= arch.shared_bytes
        block = IN_CLUSTER * max(state, rows * q * spec.element.bytes + tiles)
        self.alone = int(known["clustered"] * arch.multiprocessors) // arch.cluster  # that run at a time, a block on a multiprocessor
        self.at_once = self.alone * (2 if 2 * (block + RESERVED_BYTES) <= arch.multiprocessor_shared_bytes else 1)
        self.of_two = arch.multiprocessors // 2
        self.each_in_turn = arch.multiprocessors * (1 + FEWEST / rows)
        block = rows * q * (spec.element.bytes + 4) + RESERVED_BYTES  # of q, and of o of the strands before
        room, most = arch.multiprocessor_shared_bytes, RESIDENT_WARPS * FEWEST // rows
        fit = max(room // (block + 3 * tiles // 2), min(room // (block + tiles), int(known["few_pieces"])))
        self.in_turn = arch.multiprocessors * max(1, min(most, fit))

    def pieces(self, tiles: int, kv_len: int, sequences: int) -> int:
        """The shares of the keys of so many query tiles of each sequence: a cluster takes one."""
        return sequences * tiles * max(1, min(-(-kv_len // self.share_keys), -(-self.most_shares // tiles)))

    def demands(self, pieces: int, kv_len: int) -> dict[str, Any]:
        """The demands of so many pieces: a warp for each strand, for two, or for all, unless the last turn is short."""
        wide: dict[str, Any] = {"strands": IN_CLUSTER, "cluster": self.cluster, "alone": pieces <= self.alone}
        many, short = pieces > self.each_in_turn, kv_len <= self.share_keys
        if many and (pieces <= self.in_turn or filled(pieces, self.in_turn) > 0.9):
            return wide | {"in_turn": True, "alone": pieces <= FEW_IN_TURN * self.multiprocessors}
        full = pieces <= self.of_two or (not many and filled(pieces, self.of_two) > 0.8)
        if pieces > self.at_once and self.pairs and (full or short):  # a last turn of few keys takes no long time
            return {"strands": 2 * PAIR, "cluster": self.cluster * IN_CLUSTER // (2 * PAIR), "each": 2}
        return wide


def filled(pieces: int, at_once: int) -> float:
    """The share of places that have a piece, where so many run at a time, turn by turn.

    >>> filled(3, 2)
    0.75
    """
    return pieces / (-(-pieces // at_once) * at_once)
