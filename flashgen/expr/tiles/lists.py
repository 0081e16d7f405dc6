"""Lists of key tiles: those of the blocks that a call lists, and those that are left where each pair of a mask's tiles is looked at."""

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flashgen.expr.language.nodes import Node
from flashgen.expr.meaning.evaluate import evaluate
from flashgen.expr.meaning.lists import listed
from flashgen.expr.tiles.ranges import EMPTY, FULL, PARTIAL

if TYPE_CHECKING:
    from flashgen.spec.tensors import Blocks

Array = NDArray[Any]
_PAIRS_AT_ONCE = 1 << 22  # to bound memory


def listed_tiles(blocks: "Blocks", x: Array, tile: tuple[int, int], lengths: tuple[int, int]) -> NDArray[np.bool_]:
    """True for the key tiles that each query tile may take, [query tiles, key tiles].

    `x`: the lists of a head, [q_len / m, ...]; `tile`: its queries and keys, which divide m and n, unless n is no multiple of what products
    take: then a tile may be taken that has some listed key. `lengths`: q_len and kv_len.
    """
    if blocks.by_key:
        first = np.arange(0, lengths[0], tile[0]), np.arange(0, lengths[1], tile[1])
        keys = listed(blocks, x, first[0], np.arange(lengths[1]))
        return np.logical_or.reduceat(keys, first[1], axis=1) if lengths[1] else np.zeros((len(first[0]), 0), np.bool_)
    rows, keys = (np.arange(-(-length // size)) * size // of for length, size, of in zip(lengths, tile, (blocks.m, blocks.n), strict=True))
    count = -(-lengths[1] // blocks.n)
    found = np.zeros((1 + max(len(x), rows.max(initial=0)), count), np.bool_)  # of queries beyond the lists none
    if blocks.kind == "bitmap":
        there = np.arange(min(count, 32 * x.shape[-1]))
        found[: len(x), there] = (x[:, there // 32] >> (there % 32) & 1).astype(np.bool_)
    else:
        block, index = np.nonzero(np.logical_and.accumulate(x != -1, axis=-1) & (x >= 0) & (x < count))
        found[block, x[block, index]] = True
    return found[rows][:, keys]


def looked_at(mask: Node, classes: NDArray[np.int8], tile: tuple[int, int], values: Mapping[str, Any], top: int = 0) -> NDArray[np.int8]:
    """The classes of tiles, where those that are partial by the ranges of a mask are told by each of their pairs.

    `classes`: of query tiles from the `top`-th on; `tile`: their queries and keys; `values`: what the mask reads, q_len and kv_len.
    """
    found, (m, n) = classes.copy(), tile
    rows, columns = np.nonzero(classes == PARTIAL)
    together = max(1, _PAIRS_AT_ONCE // (m * n))
    for first in range(0, len(rows), together):
        at = rows[first : first + together], columns[first : first + together]
        q_idx, kv_idx = (at[0][:, None] + top) * m + np.arange(m), at[1][:, None] * n + np.arange(n)
        exist = (q_idx < values["q_len"])[:, :, None], (kv_idx < values["kv_len"])[:, None, :]
        seen = evaluate(mask, {**values, "q_idx": q_idx[:, :, None], "kv_idx": kv_idx[:, None, :]}) & exist[1]
        some, every = (seen & exist[0]).any((1, 2)), (seen | ~exist[0]).all((1, 2))
        found[at] = np.where(every, FULL, np.where(some, PARTIAL, EMPTY))
    return found


def ranges_of(classes: NDArray[np.int8]) -> tuple[Array, Array, tuple[bool, ...]]:
    """Ranges of key tiles: begin and end of each, [ranges, query tiles], ascending, and whether the mask is tested in it. classes: [query
    tiles, key tiles].

    >>> ranges_of(np.int8([[PARTIAL, EMPTY, FULL, FULL]]))
    (array([[0],
           [2]]), array([[1],
           [4]]), (True, False))
    """
    bounds: list[tuple[list[int], list[int]]] = []  # of masked ones and others in turns
    for line, kinds in enumerate(classes):
        edges = np.flatnonzero(np.diff(kinds, prepend=-1, append=-1))
        index = 0
        for begin, end in pairwise(edges.tolist()):
            if (kind := kinds[begin]) == EMPTY:
                continue
            index += (index % 2 == 0) != (kind == PARTIAL)
            while len(bounds) <= index:
                bounds.append(([0] * len(classes), [0] * len(classes)))
            bounds[index][0][line], bounds[index][1][line] = begin, end
            index += 1
    shape = (len(bounds), len(classes))
    begins, ends = (np.array([each[i] for each in bounds], np.int64).reshape(shape) for i in (0, 1))
    return begins, ends, tuple(i % 2 == 0 for i in range(len(bounds)))
