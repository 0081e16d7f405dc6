"""The arrays of a call besides q, k, v and outputs."""

from dataclasses import dataclass

from flashgen.spec.axes import in_pieces
from flashgen.spec.words import argument

WORD = 32  # blocks of keys that a word of a bitmap has a bit for
PRODUCT_KEYS = 16  # that one product takes at least
MOST = "k"  # the last axis of lists of indices: as many as the longest has
ROWS, WORDS = "rows", "words"  # of lists of packed sequences, whose lengths are known on the device: blocks of queries, words of a bitmap
FREE = (MOST, ROWS, WORDS)  # axes of which a call gives as many as it likes


@dataclass(frozen=True)
class Tensor:
    """A run-time array that the expressions index; its axes are as flashgen.spec.axes says."""

    name: str
    shape: tuple[str | int, ...]
    dtype: str
    grad: bool = False  # the backward gives its gradient

    @property
    def argument(self) -> str:
        """Its name in a launch and in emitted text."""
        return argument(self.name)


class Lengths(Tensor):
    """An array of sequences' lengths, or of where their keys lie: flashgen names it, and no expression reads it."""

    @property
    def argument(self) -> str:
        """Its name in a launch and in emitted text: its own, which flashgen gave."""
        return self.name


class Lists(Tensor):
    """Lists of key blocks, one for each block of queries: an axis `q_len / 128` has a place for every 128; b and hq or hk may be 1, for
    all. No expression reads them."""

    @property
    def free(self) -> bool:
        """True if a call may give as many blocks of queries as it likes."""
        return self.shape[2] == ROWS


@dataclass(frozen=True)
class Blocks:
    """The blocks of keys that a call lists: a query sees a key where the key's block is in the list of the query's, and the mask holds."""

    m: int  # queries of a block
    n: int  # keys of a block
    lists: str  # the array of a call that holds the lists
    kind: str = "indices"  # numbers of key blocks, in any order, -1 behind the last; or bitmap: a bit a key block, 32 a word
    heads: str = "hq"  # that have lists of their own: hq, query heads; or hk, key/value heads, each with one list for its group

    @property
    def by_key(self) -> bool:
        """True if its blocks of keys are no multiple of what products take: each key of a tile is asked for, by a bit."""
        return self.n % PRODUCT_KEYS > 0

    @property
    def template(self) -> str:
        """The template of what makes lists of tiles of them."""
        return "keys" if self.by_key else self.kind

    def array(self, behind: frozenset[str]) -> Lists:
        """The array of a call that holds the lists. `behind`: of q_len and kv_len, along which sequences lie one behind the other."""
        rows = ROWS if "q_len" in behind else in_pieces("q_len", self.m)
        words = WORDS if "kv_len" in behind else in_pieces("kv_len", WORD * self.n)
        return Lists(name=self.lists, shape=("b", self.heads, rows, MOST if self.kind == "indices" else words), dtype="int32")

    @property
    def text(self) -> str:
        """A description of what is listed, for people."""
        of_group = " for the heads of a group together" if self.heads == "hk" else ""
        return f"blocks of {self.m} queries x {self.n} keys that {self.lists} lists{of_group}, by {self.kind}"
