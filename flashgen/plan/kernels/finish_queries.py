"""The kernel that runs after a backward's products: the gradient of q from its float32 sums."""

from flashgen.plan.kernel import Grid, Kernel, TilePlan
from flashgen.plan.program import Parts

THREADS = 256


def finish_queries(tile: TilePlan) -> Parts:
    """The kernel, a block a query tile."""
    return Parts((Kernel("finish_queries", Grid(THREADS, (("q_len", tile.block_m), "heads", "batch"))),), ())
