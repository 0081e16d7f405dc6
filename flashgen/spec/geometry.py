"""The geometries: how long the sequences of a call are, and who says so. A geometry is a row here, and a template that bears its name."""

from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Geometry:
    """A way for sequences to lie in the arrays of a call."""

    name: str  # of its template
    own: frozenset[str] = frozenset()  # of q_len and kv_len: what differs from sequence to sequence. Kernels have it under this name
    lengths: tuple[tuple[str, tuple[str, ...]], ...] = ()  # int32 arrays of a call, each with its axes
    packed: bool = False  # sequences lie one behind the other: arrays have no axis b

    def joined(self, shape: tuple[str | int, ...]) -> int | None:
        """The axis b of a tensor that is one with the length behind it; None: there is none."""
        pairs = enumerate(pairwise(shape))
        return next((i for i, (axis, after) in pairs if self.packed and axis == "b" and after in self.own), None)

    def fault(self, shape: tuple[str | int, ...]) -> str:
        """The reason why a tensor cannot have these axes; empty if it can."""
        lengths = [axis for axis in shape if axis in ("q_len", "kv_len", "q_words")]
        if not self.packed or not lengths:
            return ""
        if len(lengths) > 1 or "q_words" in lengths:
            return f"has {' and '.join(map(str, lengths))}: of packed sequences a tensor has one length"
        return "" if self.joined(shape) is not None else f"has {lengths[0]} without b before it"


DENSE = Geometry("dense")
CACHED = Geometry("cached", own=frozenset(("kv_len",)), lengths=(("kv_lens", ("b",)),))
PACKED = Geometry(
    "packed",
    own=frozenset(("q_len", "kv_len")),
    lengths=(("cu_seqlens_q", ("b + 1",)), ("cu_seqlens_k", ("b + 1",))),
    packed=True,
)
CACHES = {"contiguous": CACHED}  # by what a spec says of its cache
