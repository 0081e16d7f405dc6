"""Looks at what a call says of its sequences: their lengths and pages, values which lie on the device."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashgen.errors import CallError
from flashgen.plan.geometry import Sizes
from flashgen.spec import Spec


def check_lengths(spec: Spec, sizes: Sizes, lengths: Mapping[str, NDArray[Any]]) -> None:
    """Raises CallError for lengths that the arrays of a call do not have, and for pages beyond those that they have.

    >>> sizes = Sizes(batch=2, q_len=1, kv_len=5, heads=1, kv_heads=1)
    >>> check_lengths(Spec(head_dim=8, dtype="float16", cache="contiguous"), sizes, {"kv_lens": np.int32([3, 5])})
    """
    for name, x in lengths.items():
        if name == "kv_lens":
            what = f"the pages of a sequence have place for {sizes.kv_len} keys" if spec.page else f"k has place for {sizes.kv_len} keys"
            _refuse((x < 0) | (x > sizes.kv_len), name, x, what)
        elif name == "block_table":
            read = np.arange(x.shape[1]) * spec.page < lengths["kv_lens"][:, None]
            _refuse(read & (x >= sizes.pages), name, x, f"k has {sizes.pages} pages; one that was given back is negative")
        else:
            total = sizes.q_len if name == "cu_seqlens_q" else sizes.kv_len
            if x[0] != 0 or x[-1] != total:
                raise CallError(f"{name} begins with {x[0]} and ends with {x[-1]}: expected 0 and {total}, as many rows as there are")
            _refuse(np.diff(x, prepend=x[:1]) < 0, name, x, "it decreases there, and a sequence ends where the next begins")


def _refuse(wrong: NDArray[np.bool_], name: str, x: NDArray[Any], why: str) -> None:
    if wrong.any():
        at = tuple(np.argwhere(wrong)[0].tolist())
        raise CallError(f"{name}[{', '.join(map(str, at))}] is {x[at]}: {why}")
