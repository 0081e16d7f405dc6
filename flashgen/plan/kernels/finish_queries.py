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
    """The memory by which warps beside the products know that the sums of a head are whole, and those that add that their place is free."""
    counted = {"summed": "key tiles whose part of dq is added", "rounded": "pieces of dq that are rounded"}
    known = tuple(Argument(name, "int*", "pointer", name, comment=f"[B, Hkv], {what}") for name, what in counted.items())
    return Parts((), known, tuple(Scratch(name, "int32", ("batch", "kv_heads")) for name in counted))
