"""The kernel after a backward whose blocks share the query heads of a key tile: gradients of keys from float32 sums."""

from flashgen.plan.kernel import Grid, Kernel, TilePlan
from flashgen.plan.kernels.arguments import key_tiles
from flashgen.plan.program import Argument, Parts, Scratch
from flashgen.spec import Spec

THREADS = 256


def finish_keys(spec: Spec, tile: TilePlan, head_shares: int) -> Parts:
    """The kernel, a block a key tile, and the memory that it reads; nothing where a block takes all heads."""
    if head_shares == 1:
        return Parts((), ())
    tiles = key_tiles(spec, tile)
    sums = {"dk_sum": tile.qk_columns, "dv_sum": tile.v_columns}
    arguments = tuple(
        Argument(name, "float*", "pointer", name, comment=f"of each key tile and share its {name[:2]}, as products leave it")
        for name in sums
    )
    scratch = (Scratch(name, "float32", (*tiles[::-1], head_shares, tile.block_n * columns)) for name, columns in sums.items())
    return Parts((Kernel("finish_keys", Grid(THREADS, tiles)),), arguments, tuple(scratch))
