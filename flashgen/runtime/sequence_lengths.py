"""Looks at the lengths of sequences that a call gives: their values, which lie on the device."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashgen.errors import CallError
from flashgen.spec import Spec


def check_lengths(spec: Spec, totals: Mapping[str, int], lengths: Mapping[str, NDArray[Any]]) -> None:
    """Raises CallError for lengths that the arrays of a call do not have. `totals`: rows of q or k, by the name of what divides them.

    >>> check_lengths(Spec(head_dim=8, dtype="float16", cache="contiguous"), {"kv_lens": 5}, {"kv_lens": np.int32([3, 5])})
    """
    for name, total in totals.items():
        x = lengths[name]
        if not spec.geometry.packed:
            _refuse((x < 0) | (x > total), name, x, f"k has place for {total} keys")
            continue
        if x[0] != 0 or x[-1] != total:
            raise CallError(f"{name} begins with {x[0]} and ends with {x[-1]}: expected 0 and {total}, as many rows as there are")
        _refuse(np.diff(x, prepend=x[:1]) < 0, name, x, "it decreases there, and a sequence ends where the next begins")


def _refuse(wrong: NDArray[np.bool_], name: str, x: NDArray[Any], why: str) -> None:
    if wrong.any():
        at = int(wrong.argmax())
        raise CallError(f"{name}[{at}] is {x[at]}: {why}")
