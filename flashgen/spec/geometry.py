"""The geometries: how long the sequences of a call are, and who says so. A geometry is a row here, and a template that bears its name."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Geometry:
    """A way for sequences to lie in the arrays of a call."""

    name: str  # of its template
    own: frozenset[str] = frozenset()  # of q_len and kv_len: what differs from sequence to sequence. Kernels have it under this name
    lengths: tuple[tuple[str, tuple[str, ...]], ...] = ()  # int32 arrays of a call, each with its axes


DENSE = Geometry("dense")
CACHED = Geometry("cached", own=frozenset(("kv_len",)), lengths=(("kv_lens", ("b",)),))
CACHES = {"contiguous": CACHED}  # by what a spec says of its cache
