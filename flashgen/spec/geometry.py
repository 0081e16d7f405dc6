"""The geometries: how long the sequences of a call are, and who says so. A geometry is a row here, and a template that bears its name."""

from dataclasses import dataclass
from itertools import pairwise

from flashgen.spec import axes


@dataclass(frozen=True)
class Geometry:
    """A way for sequences to lie in the arrays of a call."""

    name: str  # of its template
    own: frozenset[str] = frozenset()  # of q_len and kv_len: what differs from sequence to sequence. Kernels have it under this name
    lengths: tuple[tuple[str, tuple[str, ...]], ...] = ()  # int32 arrays of a call, each with its axes
    behind: frozenset[str] = frozenset()  # of q_len and kv_len: along it sequences lie one behind the other, in arrays without an axis b
    paged: bool = False  # keys lie in pages, which a table of the call names

    @property
    def packed(self) -> bool:
        """True if queries of sequences lie one behind the other."""
        return bool(self.behind)

    @property
    def separate_keys(self) -> bool:
        """True if keys of a sequence are found in another way than its queries."""
        return self.packed or self.paged

    @property
    def keys(self) -> str:
        """The template of how keys come to shared memory: from where they lie one behind the other, or from pages."""
        return "pages" if self.paged else "rows"

    def joined(self, shape: tuple[str | int, ...]) -> int | None:
        """The axis b of a tensor that is one with the length behind it; None: there is none."""
        pairs = enumerate(pairwise(shape))
        return next((i for i, (axis, after) in pairs if axis == "b" and after in self.behind), None)

    def fault(self, shape: tuple[str | int, ...]) -> str:
        """The reason why a tensor cannot have these axes; empty if it can."""
        lengths = [axis for axis in shape if axes.names(axis) & self.behind]
        if not self.packed or not lengths:
            return ""
        if len(lengths) > 1 or any(map(axes.computed, lengths)):
            return f"has {' and '.join(map(str, lengths))}: of packed sequences a tensor has one length"
        return "" if self.joined(shape) is not None else f"has {lengths[0]} without b before it"


DENSE = Geometry("dense")
CACHED = Geometry("cached", own=frozenset(("kv_len",)), lengths=(("kv_lens", ("b",)),))
PACKED = Geometry(
    "packed",
    own=frozenset(("q_len", "kv_len")),
    lengths=(("cu_seqlens_q", ("b + 1",)), ("cu_seqlens_k", ("b + 1",))),
    behind=frozenset(("q_len", "kv_len")),
)
_IN_PAGES = (("kv_lens", ("b",)), ("block_table", ("b", "pages")))
PAGED = Geometry("paged", own=frozenset(("kv_len",)), lengths=_IN_PAGES, paged=True)
PACKED_PAGED = Geometry(
    "packed_paged",
    own=frozenset(("q_len", "kv_len")),
    lengths=(("cu_seqlens_q", ("b + 1",)), *_IN_PAGES),
    behind=frozenset(("q_len",)),
    paged=True,
)
CACHES = {"contiguous": CACHED}  # by what a spec says of its cache


@dataclass(frozen=True)
class Pages:
    """A cache whose keys lie in pages, of so many keys each."""

    page: int


def geometry_of(cache: str | Pages | None, packed: bool) -> Geometry:
    """The row of a cache, and of queries one behind the other or in arrays of their own."""
    match cache:
        case Pages():
            return PACKED_PAGED if packed else PAGED
        case str():
            return CACHES[cache]
    return PACKED if packed else DENSE
