"""The gradient of q from its float32 sums: a kernel that runs after a backward's products, or what its own warps take to know when."""

from flashgen.plan.kernel import Grid, Kernel, TilePlan
from flashgen.plan.kernels.arguments import query_tiles
from flashgen.plan.program import Argument, Parts, Scratch
from flashgen.spec import Spec

THREADS = 256


def finish_queries(spec: Spec, tile: TilePlan) -> Parts:
    """The kernel, a block a query tile."""
    return Parts((Kernel("finish_queries", Grid(THREADS, query_tiles(spec, tile))),), ())


def counts() -> Parts:
    """The memory by which warps beside the products know that the sums of a head are whole."""
    known = Argument("summed", "int*", "pointer", "summed", comment="[B, Hkv], key tiles whose part of dq is added")
    return Parts((), (known,), (Scratch("summed", "int32", ("batch", "kv_heads")),))
