"""The sequences of a call, one by one: where each lies in the arrays, and how long it is."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from flashgen.spec import Spec


@dataclass(frozen=True, kw_only=True)
class Sequence:
    """A sequence of a call: its number, and its queries and keys among those that the arrays hold."""

    b: int
    rows: slice
    keys: slice

    @property
    def q_len(self) -> int:
        return self.rows.stop - self.rows.start  # type: ignore[no-any-return]  # of a slice

    @property
    def kv_len(self) -> int:
        return self.keys.stop - self.keys.start  # type: ignore[no-any-return]


def sequences(spec: "Spec", q: NDArray[Any], k: NDArray[Any], values: Mapping[str, Any]) -> Iterator[Sequence]:
    """Every sequence. q: [B, Hq, Sq, D], k: [B, Hk, Sk, D]. A length that the arrays have no place for is clamped to what they have.

    >>> from flashgen.spec import Spec
    >>> cached = Spec(head_dim=8, dtype="float32", cache="contiguous")
    >>> q, k = np.zeros((3, 1, 1, 8)), np.zeros((3, 1, 5, 8))
    >>> [each.kv_len for each in sequences(cached, q, k, {"kv_lens": np.int32([3, -1, 9])})]
    [3, 0, 5]
    """
    (batch, _, q_len, _), kv_len = q.shape, k.shape[2]
    lengths = np.clip(values["kv_lens"], 0, kv_len) if "kv_lens" in dict(spec.geometry.lengths) else [kv_len] * batch
    for b in range(batch):
        yield Sequence(b=b, rows=slice(0, q_len), keys=slice(0, int(lengths[b])))
