"""Embeddings of queries and keys before they meet: a norm of their rows, then a rotary embedding by their positions."""

from dataclasses import dataclass, field

ROLES = ("q", "k")
BOTH = ROLES
SIDES = {"q": "query", "k": "key"}  # what mappings call the arrays
LENGTHS = {"q": "q_len", "k": "kv_len"}
INDICES = {"q": "q_idx", "k": "kv_idx"}


def pairs(columns: int, interleaved: bool) -> tuple[int, int]:
    """The columns from one pair that is turned to the next, and from the first of a pair to its second.

    >>> pairs(64, interleaved=False), pairs(64, interleaved=True)
    ((1, 32), (2, 1))
    """
    return (2, 1) if interleaved else (1, columns // 2)


@dataclass(frozen=True, kw_only=True)
class Norm:
    """The root mean square of a row's columns, by which they are divided, and learned columns, by which they are multiplied."""

    eps: float = 1e-6  # added to the mean of the squares
    query: str | None = None  # tensors of the learned columns; None: 1
    key: str | None = None
    of: tuple[str, ...] = BOTH

    def columns(self, role: str) -> str | None:
        """The tensor of the learned columns of q or of k."""
        return getattr(self, SIDES[role])  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class Angles:
    """The tensors of angles, in radians, by which rows of q and of k are turned."""

    query: str | None = None
    key: str | None = None


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """A rotary embedding: pairs of columns are turned by an angle of their row. Source: Su et al., 2104.09864."""

    kind: str  # halves: a pair is columns i and i + columns / 2; interleaved: 2 i and 2 i + 1
    columns: int  # the first of a row, that are turned
    angles: Angles | None = None
    base: float | None = None  # without tensors: position * base^(-2 i / columns) for pair i
    of: tuple[str, ...] = BOTH
    pairs: tuple[int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "pairs", pairs(self.columns, self.kind == "interleaved"))

    def table(self, role: str) -> str | None:
        """The tensor of angles of q or of k; None: they follow from positions."""
        return getattr(self.angles, SIDES[role]) if self.angles else None

    @property
    def frequencies(self) -> tuple[float, ...]:
        """The angle of each pair at position 1, as float32 holds it; empty where tensors say the angles."""
        from flashgen.dtypes import float32

        count = self.columns // 2 if self.base else 0
        return tuple(float32((self.base or 1.0) ** (-2 * i / self.columns)) for i in range(count))


NO_ROTARY = Rotary(kind="halves", columns=0, of=())
