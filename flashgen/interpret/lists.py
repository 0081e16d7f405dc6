"""Lists of blocks where a schedule takes all keys as one tile: element by element."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashgen.expr.meaning.lists import listed
from flashgen.spec import Spec


def in_lists(spec: Spec, values: Mapping[str, Any], b: NDArray[Any], h: NDArray[Any], lengths: tuple[int, int]) -> NDArray[np.bool_]:
    """True where the lists of a call let a query see a key, [n, Sq, Sk], for some sequences and query heads, [n] each."""
    assert spec.blocks
    rows, keys = map(np.arange, lengths)
    return np.stack([listed(spec.blocks, values[spec.blocks.lists], at, rows, keys) for at in zip(b.tolist(), h.tolist(), strict=True)])
