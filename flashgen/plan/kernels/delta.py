"""The kernel that runs before a backward's products: lse and delta of each row, and zeros where the gradient of q is summed."""

from flashgen.plan.kernel import Extent, Grid, Kernel, TilePlan
from flashgen.plan.program import Argument, Parts, Scratch

THREADS = 256


def delta(tile: TilePlan, *, summed: bool = True) -> Parts:
    """The kernel, a block a query tile, and the memory that it fills: rows of whole tiles. `summed`: blocks of key tiles add to dq."""
    tiles: tuple[Extent, ...] = ("batch", "heads", ("q_len", tile.block_m))
    kernel = Kernel("delta", Grid(THREADS, (("q_len", tile.block_m), "heads", "batch")))
    arguments = (
        Argument("row_lse", "float*", "pointer", "row_lse", comment="[B, Hq, rows of whole tiles], log2; inf: a row that gives nothing"),
        Argument("row_delta", "float*", "pointer", "row_delta", comment="like row_lse: what is subtracted from dp"),
    )
    sums = (Argument("dq_sum", "float*", "pointer", "dq_sum", comment="of each query tile its dq before the scale"),)
    scratch = (
        Scratch("row_lse", "float32", (*tiles, tile.block_m)),
        Scratch("row_delta", "float32", (*tiles, tile.block_m)),
    )
    rows = Parts((kernel,), arguments, scratch)
    return rows.followed(Parts((), sums, (Scratch("dq_sum", "float32", (*tiles, tile.block_m * tile.qk_stored)),))) if summed else rows
