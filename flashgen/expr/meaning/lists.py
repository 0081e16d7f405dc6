"""The pairs of a query and a key that lists of blocks let be seen, by their definition."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from flashgen.spec.tensors import Blocks

Array = NDArray[Any]


def listed(blocks: "Blocks", x: Array, at: tuple[int, int], q_idx: Array, kv_idx: Array) -> Array:
    """True where the block of a key is in the list of that of a query, [rows, keys].

    `x`: the lists of a call, [b or 1, hq or 1, q_len / m, ...]; `at`: sequence and query head; q_idx: [rows], kv_idx: [keys]. A list is a
    set, in any order, and a number that it has twice counts once. What follows the first -1, and a number of no block, is not in it.

    >>> from flashgen.spec.tensors import Blocks
    >>> listed(Blocks(m=1, n=2, lists="idx"), np.array([[[[1, 9, -1, 0]]]]), (0, 0), np.arange(1), np.arange(4)).tolist()
    [[False, False, True, True]]
    """
    b, h = (i if n > 1 else 0 for i, n in zip(at, x.shape, strict=False))
    own = x[b, h, q_idx // blocks.m]
    key = kv_idx // blocks.n
    if blocks.kind == "bitmap":
        bits: Array = own[:, key // 32] >> (key % 32) & 1
        return bits.astype(np.bool_)
    before_end = np.logical_and.accumulate(own != -1, axis=-1)
    found = np.zeros((len(own), len(key)), np.bool_)
    for numbers, counts in zip(own.T, before_end.T, strict=True):
        found |= (numbers[:, None] == key) & counts[:, None]
    return found
