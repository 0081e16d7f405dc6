"""The kernel that runs after a backward's products: the gradient of q from its float32 sums."""

from flashgen.plan.kernel import Grid, Kernel, TilePlan
from flashgen.plan.kernels.arguments import query_tiles
from flashgen.plan.program import Parts
from flashgen.spec import Spec

THREADS = 256


def finish_queries(spec: Spec, tile: TilePlan) -> Parts:
    """The kernel, a block a query tile."""
    return Parts((Kernel("finish_queries", Grid(THREADS, query_tiles(spec, tile))),), ())
