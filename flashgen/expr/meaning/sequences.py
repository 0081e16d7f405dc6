"""The sequences of a call, one by one: where each lies in the arrays, and how long it is."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from flashgen.spec import Spec, Tensor


@dataclass(frozen=True, kw_only=True)
class Sequence:
    """A sequence of a call: its number, and its queries and keys among those that the arrays hold."""

    b: int
    at: int  # along the axis of sequences in arrays: 0 where they lie one behind the other
    rows: slice
    keys: slice

    def read(self, spec: "Spec", values: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """The tensors of a spec as the sequence reads them: of those that hold rows of all sequences, its own, as the only one."""
        return {tensor.name: self._own(spec, tensor, np.asarray(values[tensor.name])) for tensor in spec.tensors}

    def _own(self, spec: "Spec", tensor: "Tensor", x: NDArray[Any]) -> NDArray[Any]:
        if (at := spec.geometry.joined(tensor.shape)) is None:
            return x
        if x.shape[at] != 1:  # else it is repeated
            x = x[(*(slice(None),) * at, self.rows if tensor.shape[at + 1] == "q_len" else self.keys)]
        return np.expand_dims(x, at)

    @property
    def q_len(self) -> int:
        return self.rows.stop - self.rows.start  # type: ignore[no-any-return]  # of a slice

    @property
    def kv_len(self) -> int:
        return self.keys.stop - self.keys.start  # type: ignore[no-any-return]


def sequences(spec: "Spec", lengths: tuple[int, int, int], values: Mapping[str, Any]) -> Iterator[Sequence]:
    """Every sequence. `lengths`: of the axes b, q_len and kv_len of arrays; where these hold all sequences at once, 1, total_q and total_k.

    What the arrays have no place for is left out.

    >>> from flashgen.spec import Spec
    >>> cached = Spec(head_dim=8, dtype="float32", cache="contiguous")
    >>> [each.kv_len for each in sequences(cached, (3, 1, 5), {"kv_lens": np.int32([3, -1, 9])})]
    [3, 0, 5]
    """
    batch, q_len, kv_len = lengths
    if spec.geometry.packed:
        rows, keys = _spans(values["cu_seqlens_q"], q_len), _spans(values["cu_seqlens_k"], kv_len)
        yield from (Sequence(b=b, at=0, rows=of_q, keys=of_k) for b, (of_q, of_k) in enumerate(zip(rows, keys, strict=True)))
        return
    there = np.clip(values["kv_lens"], 0, kv_len) if "kv_lens" in dict(spec.geometry.lengths) else [kv_len] * batch
    for b in range(batch):
        yield Sequence(b=b, at=b, rows=slice(0, q_len), keys=slice(0, int(there[b])))


def _spans(cu_seqlens: NDArray[np.int32], total: int) -> list[slice]:
    """Begin and end of each sequence among so many rows."""
    ends = np.clip(cu_seqlens, 0, total).tolist()
    return [slice(begin, max(begin, end)) for begin, end in pairwise(ends)]
