"""Lists of blocks as tiles: which key tiles the block of a query tile lists, and the runs of tiles that are left of a mask's."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from flashgen.spec.tensors import Blocks

Array = NDArray[Any]


def listed_tiles(blocks: "Blocks", x: Array, tile: tuple[int, int], lengths: tuple[int, int]) -> NDArray[np.bool_]:
    """True for the key tiles that each query tile may take, [query tiles, key tiles].

    `x`: the lists of a head, [q_len / m, ...]; `tile`: its queries and keys, which divide m and n; `lengths`: q_len and kv_len.
    """
    rows, keys = (np.arange(-(-length // size)) * size // of for length, size, of in zip(lengths, tile, (blocks.m, blocks.n), strict=True))
    count = -(-lengths[1] // blocks.n)
    found = np.zeros((len(x), count), np.bool_)
    if blocks.kind == "bitmap":
        found |= (x[:, np.arange(count) // 32] >> (np.arange(count) % 32) & 1).astype(np.bool_)
    else:
        block, place = np.nonzero(np.logical_and.accumulate(x != -1, axis=-1) & (x >= 0) & (x < count))
        found[block, x[block, place]] = True
    return found[rows][:, keys]


def runs_of_listed(begin: Array, end: Array, masked: Sequence[bool], listed: NDArray[np.bool_]) -> tuple[Array, Array, tuple[bool, ...]]:
    """Begin and end of runs that have of these the listed tiles alone, and whether the mask is tested in each. begin, end: [runs, query
    tiles], ascending.

    >>> runs_of_listed(np.array([[0]]), np.array([[4]]), [True], np.array([[True, False, True, True]]))
    (array([[0],
           [2]]), array([[1],
           [4]]), (True, True))
    """
    tiles = np.arange(listed.shape[1])
    firsts, lasts, tested = [], [], []
    for first, last, mask in zip(begin, end, masked, strict=True):
        taken = listed & (first[:, None] <= tiles) & (tiles < last[:, None])
        edges = [np.flatnonzero(np.diff(row, prepend=False, append=False)) for row in taken]
        for i in range(max((len(each) // 2 for each in edges), default=0)):
            places = [each[2 * i : 2 * i + 2] if len(each) > 2 * i else (0, 0) for each in edges]
            firsts.append([place[0] for place in places])
            lasts.append([place[1] for place in places])
            tested.append(mask)
    shape = (len(tested), begin.shape[1])
    return np.array(firsts, np.int64).reshape(shape), np.array(lasts, np.int64).reshape(shape), tuple(tested)
