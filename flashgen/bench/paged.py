"""Keys in pages, for calls of specs whose cache has them: pages in any order, among others that hold NaN and that no sequence has."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashgen.spec import Spec

SPARE = 2  # pages that no table names


def table(batch: int, columns: int, random: np.random.RandomState) -> NDArray[np.int32]:
    """A block table [batch, columns] in which no page comes twice."""
    return random.permutation(batch * columns + SPARE)[: batch * columns].reshape(batch, columns).astype(np.int32)


def in_pages(spec: Spec, x: NDArray[Any], block_table: NDArray[np.int32]) -> NDArray[Any]:
    """Keys [B, Hk, columns * page, D] in the pages that a table names, as the layout of k has them. Entries that are no page are passed.

    >>> x, block_table = np.arange(8, dtype=np.float16).reshape(1, 1, 8, 1), np.int32([[2, -1]])
    >>> in_pages(Spec(head_dim=8, dtype="float16", cache={"page": 4}), x, block_table)[..., 0, 0]
    array([[nan, nan, nan, nan],
           [nan, nan, nan, nan],
           [ 0.,  1.,  2.,  3.],
           [nan, nan, nan, nan]], dtype=float16)
    """
    (_, heads, _, width), (batch, columns) = x.shape, block_table.shape
    pages = np.full((batch * columns + SPARE, heads, spec.page, width), np.nan, x.dtype)
    there = (block_table >= 0) & (block_table < len(pages))
    pages[block_table[there]] = x.reshape(batch, heads, columns, spec.page, width).swapaxes(1, 2)[there]
    return pages.transpose(spec.order_of("k").from_heads_first)
