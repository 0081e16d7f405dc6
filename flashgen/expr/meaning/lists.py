"""The pairs of a query and a key that lists of blocks let be seen, by their definition."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from flashgen.spec.tensors import Blocks

Array = NDArray[Any]


def list_of(blocks: "Blocks", x: Array, known: Mapping[str, Any]) -> Array:
    """The lists of one head, [q_len / m, ...], among those of a call, [b or 1, heads or 1, q_len / m, ...]; `known` has b, h and hk."""
    b, h = (i if n > 1 else 0 for i, n in zip((known["b"], known["h" if blocks.heads == "hq" else "hk"]), x.shape, strict=False))
    own: Array = x[b, h]
    return own


def listed(blocks: "Blocks", x: Array, q_idx: Array, kv_idx: Array) -> Array:
    """True where the block of a key is in the list of that of a query, [rows, keys].

    `x`: the lists of a head, [q_len / m, ...]; q_idx: [rows], kv_idx: [keys]. A list is a set, in any order, and a number that it has twice
    counts once. What follows the first -1, and a number of no block, is not in it, and neither are blocks for which the array has no place.

    >>> from flashgen.spec.tensors import Blocks
    >>> listed(Blocks(m=1, n=2, lists="idx"), np.array([[1, 9, -1, 0]]), np.arange(1), np.arange(4)).tolist()
    [[False, False, True, True]]
    """
    row, key = q_idx // blocks.m, kv_idx // blocks.n
    there = row < len(x)
    own = x[np.where(there, row, 0)]
    if blocks.kind == "bitmap":
        word = key // 32
        bits: Array = own[:, np.minimum(word, own.shape[-1] - 1)] >> (key % 32) & 1
        found: Array = bits.astype(np.bool_) & there[:, None] & (word < own.shape[-1])
        return found
    before_end = np.logical_and.accumulate(own != -1, axis=-1) & there[:, None]
    found = np.zeros((len(own), len(key)), np.bool_)
    for numbers, counts in zip(own.T, before_end.T, strict=True):
        found |= (numbers[:, None] == key) & counts[:, None]
    return found
