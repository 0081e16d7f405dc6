"""The kernels that run before the attention where a query tile takes the key tiles of a list: they make the lists."""

from flashgen.expr.language.nodes import Node, names
from flashgen.plan.kernel import Grid, Kernel
from flashgen.plan.program import Argument, Parts, Scratch

_WARP = 32  # threads: one warp a query tile, or a piece of one
WORD = 32  # key tiles, a bit each
_TILES = 4  # key tiles of a block that looks at pairs, a warp each


def key_lists(block_m: int, block_n: int, *, early: bool, pieces: int) -> Parts:
    """The kernel and its memory; it starts early if the attention does. `pieces`: as of `key_ranges`."""
    tiles = ("batch", "heads", ("q_len", block_m))
    kernel = Kernel("key_lists", Grid(_WARP * pieces, tiles, early))
    whom = "each query tile" if pieces == 1 else "each query tile, and then each of its warpgroups,"
    arguments = (
        Argument(
            "key_tiles", "uint2*", "pointer", "key_tiles", comment="of each query tile, a bit a key tile: taken, and without the mask"
        ),
        Argument("key_spans", "int4*", "pointer", "key_spans", comment=f"begin, end and number of the key tiles that {whom} takes"),
    )
    scratch = (
        Scratch("key_tiles", "int32", (*tiles, ("kv_len", WORD * block_n), 2)),
        Scratch("key_spans", "int32", (*tiles, 4 * pieces)),
    )
    return Parts((kernel,), arguments, scratch)


def seen_tiles(block_m: int, block_n: int, mask: Node, *, early: bool) -> Parts:
    """The kernel that looks at each pair of the tiles where the ranges of a mask do not tell, and its memory: a byte a tile, alike for all
    heads."""
    tiles, sequences = ("q_len", block_m), ("batch",) if "b" in names(mask) else ()
    kernel = Kernel("seen_tiles", Grid(_WARP * _TILES, (*sequences, tiles, ("kv_len", _TILES * block_n)), early))
    comment = "of each query tile and key tile: 0 where no row sees a key, 2 where each sees all, else 1"
    argument = Argument("tiles_seen", "unsigned char*", "pointer", "tiles_seen", comment=comment)
    return Parts((kernel,), (argument,), (Scratch("tiles_seen", "bool", (*sequences, tiles, ("kv_len", block_n))),))
