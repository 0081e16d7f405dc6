"""The sequences of a call, one by one: where each lies in the arrays, and how long it is."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from flashgen.spec import Spec, Tensor

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Sequence:
    """A sequence of a call: its number, and its queries and keys among those that the arrays hold."""

    b: int
    at: int  # along the axis of sequences in q: 0 where they lie one behind the other
    keys_at: int  # the same in k and v
    rows: slice
    keys: slice

    def read(self, spec: "Spec", values: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """The tensors of a spec as the sequence reads them."""
        return {tensor.name: self.own(spec, tensor, np.asarray(values[tensor.name])) for tensor in spec.tensors}

    def own(self, spec: "Spec", tensor: "Tensor", x: NDArray[Any]) -> NDArray[Any]:
        """A view of a tensor, or of its gradient, as the sequence reads it: of rows of all sequences its own, as the only one."""
        if (at := spec.geometry.joined(tensor.shape)) is None:
            return x
        if x.shape[at] != 1:  # else it is repeated
            x = x[(*(slice(None),) * at, self.rows if tensor.shape[at + 1] == "q_len" else self.keys)]
        return np.expand_dims(x, at)

    @property
    def q_len(self) -> int:
        """The number of queries of the sequence."""
        return self.rows.stop - self.rows.start  # type: ignore[no-any-return]  # of a slice

    @property
    def kv_len(self) -> int:
        """The number of keys of the sequence."""
        return self.keys.stop - self.keys.start  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class Place:
    """The place of some query rows of a head, and of the keys of their sequence, in arrays [B, H, S, D]."""

    sequence: Sequence
    head: int
    kv_head: int
    part: slice  # of the rows of the sequence

    @property
    def rows(self) -> tuple[int, int, slice]:
        """Batch, query head, rows."""
        first = self.sequence.rows.start
        return self.sequence.at, self.head, slice(first + self.part.start, first + self.part.stop)

    @property
    def keys(self) -> tuple[int, int, slice]:
        """Batch, key/value head, keys."""
        return self.sequence.keys_at, self.kv_head, self.sequence.keys


def sequences(spec: "Spec", lengths: tuple[int, int, int], values: Mapping[str, Any]) -> Iterator[Sequence]:
    """Every sequence. `lengths`: of the axes b, q_len and kv_len of arrays as `heads_first` gives them; where q holds all sequences at
    once, 1, total_q, and what k has.

    What the arrays have no place for is left out.

    >>> from flashgen.spec import Spec
    >>> cached = Spec(head_dim=8, dtype="float32", cache="contiguous")
    >>> [each.kv_len for each in sequences(cached, (3, 1, 5), {"kv_lens": np.int32([3, -1, 9])})]
    [3, 0, 5]
    """
    batch, q_len, kv_len = lengths
    behind, given = spec.geometry.behind, dict(spec.geometry.lengths)
    rows = _spans(values["cu_seqlens_q"], q_len) if "q_len" in behind else [slice(0, q_len)] * batch
    if "kv_len" in behind:
        keys = _spans(values["cu_seqlens_k"], kv_len)
    else:
        there = np.clip(values["kv_lens"], 0, kv_len).tolist() if "kv_lens" in given else [kv_len] * batch
        keys = [slice(0, n) for n in there]
    for b, (of_q, of_k) in enumerate(zip(rows, keys, strict=True)):
        yield Sequence(b=b, at=0 if "q_len" in behind else b, keys_at=0 if "kv_len" in behind else b, rows=of_q, keys=of_k)


def heads_first(spec: "Spec", q: Array, k: Array, v: Array, values: Mapping[str, Any]) -> tuple[Array, Array, Array]:
    """q, k and v of the spec's layout as [B, H, S, D]; of keys in pages each sequence's own, 0 where its table names no page there is."""
    x, *keys = (spec.order_of(role).expanded(np.asarray(x)) for role, x in (("q", q), ("k", k), ("v", v)))
    found = (x.transpose(spec.order_of("k").to_heads_first) for x in keys)
    of_k, of_v = (_from_pages(x, np.asarray(values["block_table"])) for x in found) if spec.page else found
    return x.transpose(spec.order.to_heads_first), of_k, of_v


def _from_pages(x: Array, table: NDArray[np.int32]) -> Array:
    """Keys [B, Hk, columns * page, D] that lie in pages [pages, Hk, page, D], by a table [B, columns]."""
    there = (table >= 0) & (table < len(x))
    found = np.where(there[..., None, None, None], x[np.where(there, table, 0)], x.dtype.type(0)).swapaxes(1, 2)
    batch, heads, columns, page, width = found.shape
    return found.reshape(batch, heads, columns * page, width)


def _spans(cu_seqlens: NDArray[np.int32], total: int) -> list[slice]:
    """Begin and end of each sequence among so many rows."""
    ends = np.clip(cu_seqlens, 0, total).tolist()
    return [slice(begin, max(begin, end)) for begin, end in pairwise(ends)]
