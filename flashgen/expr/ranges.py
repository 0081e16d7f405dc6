"""A mask as ranges of key tiles: which tiles a query tile loads, and in which of them the mask is tested."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashgen.expr.affine import Int
from flashgen.expr.nodes import Node


@dataclass(frozen=True)
class Loop:
    """Key tiles [begin, end); `masked` tells whether the predicate is tested inside."""

    begin: Int
    end: Int
    masked: bool


@dataclass(frozen=True)
class RangeText:
    """CUDA text: statements, then begin, end and whether masked of every loop."""

    lines: tuple[str, ...]
    loops: tuple[tuple[str, str, bool], ...]


@dataclass(frozen=True)
class KeyRanges:
    """Straight-line code (`steps`, in order) and the loops over key tiles that it bounds, ascending and disjoint."""

    block_m: int
    block_n: int
    steps: tuple[tuple[str, Int], ...]
    loops: tuple[Loop, ...]
    reasons: tuple[str, ...]  # what was not analysed, and why
    requires: tuple[str, ...]  # params that the host must check to be at least 1

    @property
    def uniform(self) -> bool:
        """Whether every query tile of every head has the same number of key tiles."""
        raise NotImplementedError

    def evaluate(self, q_len: int, kv_len: int, values: dict[str, Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Begin and end of every loop: [loops, q_tiles]. `values` holds b, h, hk, params and tensors by name."""
        raise NotImplementedError

    def cuda(self) -> RangeText:
        """The same for a kernel; in scope: p, batch, head, kv_head, q_begin, BLOCK_M, BLOCK_N, floor_div."""
        raise NotImplementedError

    def classes(self, q_len: int, kv_len: int, values: dict[str, Any]) -> NDArray[np.int8]:
        """0 never loaded, 1 masked, 2 not masked: [q_tiles, kv_tiles]."""
        raise NotImplementedError

    def share(self, q_len: int, kv_len: int, values: dict[str, Any]) -> dict[str, float]:
        """The shares of tiles that are empty, partial and full."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """Steps and loops as text, with what was lost and what the host checks."""
        raise NotImplementedError


def analyse(mask: Node, block_m: int, block_n: int) -> KeyRanges:
    """The key tiles that a query tile of block_m rows loads, in tiles of block_n keys."""
    raise NotImplementedError
