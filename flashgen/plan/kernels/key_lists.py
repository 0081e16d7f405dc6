"""The kernel that runs before the attention where a query tile takes the key tiles of a list: it makes the lists."""

from flashgen.plan.kernel import Grid, Kernel
from flashgen.plan.program import Argument, Parts, Scratch

_WARP = 32  # threads: one warp a query tile, or a piece of one
WORD = 32  # key tiles, a bit each


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
