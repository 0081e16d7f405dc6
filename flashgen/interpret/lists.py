"""Lists of blocks where a schedule takes all keys as one tile: element by element."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashgen.expr.meaning.lists import list_of, listed
from flashgen.spec import Spec


def in_lists(spec: Spec, values: Mapping[str, Any], heads: Mapping[str, NDArray[Any]], lengths: tuple[int, int]) -> NDArray[np.bool_]:
    """True where the lists of a call let a query see a key, [n, Sq, Sk]. `heads`: b, h and hk of some heads, [n] each."""
    assert spec.blocks
    rows, keys = map(np.arange, lengths)
    each = (dict(zip(heads, one, strict=True)) for one in zip(*(x.tolist() for x in heads.values()), strict=True))
    return np.stack([listed(spec.blocks, list_of(spec.blocks, values[spec.blocks.lists], known), rows, keys) for known in each])
