"""Lists of blocks, element by element: where a schedule takes all keys as one tile, and of blocks that tiles do not divide."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashgen.expr.meaning.lists import list_of, listed
from flashgen.spec.tensors import Blocks


def in_lists(blocks: Blocks, values: Mapping[str, Any], heads: Mapping[str, NDArray[Any]], at: tuple[slice, slice]) -> NDArray[np.bool_]:
    """True where the lists of a call let a query see a key, [n, rows, keys], of the rows and keys `at`. `heads`: b, h and hk of some heads,
    [n] each."""
    rows, keys = (np.arange(part.start, part.stop) for part in at)
    each = (dict(zip(heads, one, strict=True)) for one in zip(*(x.tolist() for x in heads.values()), strict=True))
    return np.stack([listed(blocks, list_of(blocks, values[blocks.lists], known), rows, keys) for known in each])
