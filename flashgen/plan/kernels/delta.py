"""The kernel that runs before a backward's products: lse and delta of each row, and zeros where the gradient of q is summed."""

from flashgen.plan.kernel import Extent, Grid, Kernel, TilePlan
from flashgen.plan.kernels.arguments import query_tiles
from flashgen.plan.program import Argument, Parts, Scratch
from flashgen.plan.sum_places import SumPlaces
from flashgen.spec import Spec

THREADS = 256


def delta(spec: Spec, tile: TilePlan, *, summed: bool = True, adders: int = 0, places: SumPlaces | None = None) -> Parts:
    """The kernel, a block a query tile, and the memory that it fills: rows of whole tiles. `summed`: blocks of key tiles add to dq;
    `adders`: in turns, so many of each key tile; `places`: of the heads whose sums have one at once, None: all."""
    blocks = query_tiles(spec, tile)
    tiles: tuple[Extent, ...] = blocks[::-1]
    kernel = Kernel("delta", Grid(THREADS, blocks))
    shape = "[Hq, rows of whole tiles at all places]" if spec.geometry.packed else "[B, Hq, rows of whole tiles]"
    arguments = (
        Argument("row_lse", "float*", "pointer", "row_lse", comment=f"{shape}, log2; inf: a row that gives nothing"),
        Argument("row_delta", "float*", "pointer", "row_delta", comment="like row_lse: what is subtracted from dp"),
    )
    sums = (Argument("dq_sum", "float*", "pointer", "dq_sum", comment="of each query tile its dq before the scale"),)
    scratch = (
        Scratch("row_lse", "float32", (*tiles, tile.block_m)),
        Scratch("row_delta", "float32", (*tiles, tile.block_m)),
    )
    rows = Parts((kernel,), arguments, scratch)
    if summed:
        of_heads: tuple[Extent, ...] = (places, "group", tiles[-1]) if places else tiles
        rows = rows.followed(Parts((), sums, (Scratch("dq_sum", "float32", (*of_heads, tile.block_m * tile.qk_stored)),)))
    if adders:
        last = Argument(
            "turns",
            "int*",
            "pointer",
            "turns",
            comment="of each query tile the number of key tiles up to the last that has added to its dq",
        )
        rows = rows.followed(Parts((), (last,), (Scratch("turns", "int32", (*tiles, adders)),)))
    return rows
