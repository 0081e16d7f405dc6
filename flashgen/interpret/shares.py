"""The shares of the key tiles of query tiles, as kernels take them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Bounds = NDArray[np.int64]  # of ranges of key tiles: [ranges, query tiles]


def share_of(begin: Bounds, end: Bounds, share: int, most: int, least: int) -> tuple[Bounds, Bounds]:
    """Begin and end of each run in one of the shares. `most`: shares at most; `least`: key tiles of one at least, where that allows it.

    >>> share_of(np.array([[0], [5]]), np.array([[5], [7]]), 1, most=2, least=1)
    (array([[4],
           [5]]), array([[5],
           [7]]))
    """
    counts = np.maximum(0, end - begin)
    tiles = counts.sum(0)
    shares = np.clip(-(-tiles // least), 1, most)
    first, last = (np.where(share < shares, _begin(tiles, shares, at), tiles) for at in (share, share + 1))
    before = np.cumsum(counts, 0) - counts
    return begin + np.clip(first - before, 0, counts), begin + np.clip(last - before, 0, counts)


def _begin(tiles: Any, shares: Any, share: int) -> Any:
    """The tiles of all shares before one."""
    return share * (tiles // shares) + np.minimum(share, tiles % shares)
