"""The kernel that puts new keys and values into a cache: what it is made for, and what it is given."""

from dataclasses import dataclass
from functools import cached_property

from flashgen.dtypes import DType, by_name
from flashgen.plan.program import Argument
from flashgen.spec.embedding import pairs

_ARRAYS = ("k", "v", "k_cache", "v_cache")
_COMMENTS = {"k": "new", "v": "new", "k_cache": "written to", "v_cache": "written to"}


@dataclass(frozen=True, kw_only=True)
class AppendPlan:
    """A kernel for caches of one dtype and head dims, on one architecture."""

    arch: str
    dtype: str
    qk: int  # columns of k
    v: int
    rotary: int = 0  # columns of k that are turned
    interleaved: bool = False  # pairs of columns lie beside each other, else half of `rotary` apart
    packed: bool = False  # new tokens of all sequences lie one behind the other
    paged: bool = False
    threads: int = 128
    entry: str = "append"

    @property
    def element(self) -> DType:
        """The row of `dtype`."""
        return by_name(self.dtype)

    @property
    def text(self) -> str:
        """The kernel in words."""
        tokens = "k [tokens, Hk, D]" if self.packed else "k [B, n, Hk, D]"
        where = "pages [pages, page, Hk, D]" if self.paged else "a cache [B, S, Hk, D]"
        return f"{tokens}, v likewise, {self.dtype}, become the last keys and values of their sequences in {where}"

    @property
    def step(self) -> int:
        """Columns from a pair that is turned to the next."""
        return pairs(self.rotary, self.interleaved)[0]

    @property
    def distance(self) -> int:
        """Columns from the first of a pair to the second."""
        return pairs(self.rotary, self.interleaved)[1]

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        """The members of Params."""
        cuda = self.element.cuda
        found = [Argument(x, f"{'' if 'cache' in x else 'const '}{cuda}*", "pointer", x, comment=_COMMENTS[x]) for x in _ARRAYS]
        found.append(Argument("kv_lens", "const int*", "pointer", "kv_lens", comment="[B], keys of each sequence, the new ones among them"))
        if self.paged:
            found.append(Argument("block_table", "const int*", "pointer", "block_table", comment="[B, columns], pages of each sequence"))
        if self.packed:
            found.append(Argument("cu_seqlens", "const int*", "pointer", "cu_seqlens", comment="[B + 1], where new tokens begin"))
        if self.rotary:
            found += [Argument(x, "const float*", "pointer", x, comment="[positions, ROTARY / 2]") for x in ("cos", "sin")]
        found += [Argument(f"{x}_strides", "Strides", "strides", x) for x in _ARRAYS]
        found += [Argument(x, "int", "scalar", x, comment=comment) for x, comment in SCALARS.items()]
        return tuple(found)


SCALARS = {
    "tokens": "in all",
    "each": "of them that lie together: those of a sequence, or all",
    "batch": "",
    "heads": "of keys and values",
    "pages": "that the cache has",
    "page": "keys of one; without pages, those that there is place for",
    "columns": "of block_table; 1 without one",
    "positions": "that cos and sin have",
}
