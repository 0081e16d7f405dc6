"""The key/value heads whose sums of dq have a place in memory at once, where warps beside a backward's products round them."""

from dataclasses import dataclass

FEW_TILES = 8  # key tiles of a head with fewer of which each has a place of its own: products would wait for one that is taken again


@dataclass(frozen=True)
class SumPlaces:
    """An extent: the heads of all sequences, or fewer, twice as many as multiprocessors are at work at, two at least: key tiles are dealt
    head by head there. `places` of the emitted text says the same."""

    block_n: int  # keys of a tile
    multiprocessors: int

    def of(self, heads: int, kv_len: int) -> int:
        """The places. `heads`: of all sequences.

        >>> SumPlaces(128, 132).of(64, 4096)
        10
        """
        tiles = -(-kv_len // self.block_n)
        return heads if tiles < FEW_TILES else min(heads, max(2, 2 * self.multiprocessors // tiles + 2))

    @property
    def text(self) -> str:
        """The places in C, of the sizes n."""
        tiles, heads = f"ceil_div(n.kv_len, {self.block_n})", "n.kv_heads * n.batch"
        return f"({tiles} < {FEW_TILES} ? {heads} : least({heads}, most(2, {2 * self.multiprocessors} / {tiles} + 2)))"
