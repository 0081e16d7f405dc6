"""Strands of the keys of few query rows: how many there are follows from spec and arch, which warps have them from the call."""

from typing import TYPE_CHECKING, Any

from flashgen.arch import Arch
from flashgen.plan.costs.model import of_arch
from flashgen.plan.engines.limits import up, v_slices
from flashgen.spec import Spec

if TYPE_CHECKING:
    from flashgen.plan.strategy import Problem

STRAND_TILE = 16  # keys of a tile where there are strands: o has other bits with other tiles
IN_CLUSTER, PAIR = 4, 8  # warps of a block, of a cluster of as many blocks as there may be, and of two, whose warps have two strands each
WIDEST = 128  # columns of v, of which a warp holds o of 32 rows
COSTS = "shares"


def strands(spec: Spec, arch: Arch, rows: int) -> int:
    """The strands of a share where query rows are few: as many as there is shared memory for, if warps beside each other have them."""
    if spec.block.m or spec.block.n or spec.stages or spec.warps or spec.blocks or isinstance(spec.split, int):
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
    """Who has the strands of a query tile of so many rows where blocks may be a cluster. None has other bits than another.

    >>> from flashgen.arch import by_name
    >>> InCluster(Spec(head_dim=128, dtype="bfloat16"), by_name("sm_90a"), 16).demands(20)
    {'strands': 4, 'cluster': 8, 'alone': False}
    """

    def __init__(self, spec: Spec, arch: Arch, rows: int):
        known = of_arch(arch, COSTS)
        q, keys = _columns(spec)
        self.cluster, self.multiprocessors = arch.cluster, arch.multiprocessors
        self.exists = arch.cluster > 1 and strands(spec, arch, rows) >= IN_CLUSTER and (rows == STRAND_TILE or q <= WIDEST)
        self.alone = int(known["clustered"] * arch.multiprocessors) // arch.cluster
        state, tiles = (
            rows * (q + 8) * 4,
            2 * STRAND_TILE * keys * spec.element.bytes,
        )  # bytes; one state waits, the other takes the place of tiles
        self.pairs = PAIR * (state + max(state, tiles)) <= arch.shared_bytes
        self.in_turn = int(known["few_pieces"]) * arch.multiprocessors * max(1, 2 * WIDEST // keys)

    @property
    def at_once(self) -> int:
        """The clusters that run at a time: two blocks on a multiprocessor."""
        return 2 * self.alone

    def demands(self, pieces: int) -> dict[str, Any]:
        """What so many query tiles, or shares of them, demand: a warp for each strand, for two, or for all, as there are more of them."""
        turns = -(-pieces // self.in_turn)
        wide: dict[str, Any] = {"strands": IN_CLUSTER, "cluster": self.cluster, "alone": pieces <= self.alone}
        if pieces > 2 * self.multiprocessors and (turns == 1 or pieces > 0.9 * turns * self.in_turn):  # else the last turn would be short
            return wide | {"in_turn": True}
        if pieces > self.at_once and self.pairs:
            return {"strands": 2 * PAIR, "cluster": self.cluster * IN_CLUSTER // (2 * PAIR), "each": 2}
        return wide
