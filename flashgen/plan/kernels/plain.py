"""The kernel that runs after an attention of planes: plain float32 for query tiles that see what planes do not hold."""

from flashgen.plan.kernel import Grid, Kernel, Region, SmemPlan, TilePlan
from flashgen.plan.kernels.arguments import query_tiles
from flashgen.plan.program import Argument, Parts, Scratch
from flashgen.spec import Spec

LOST = "lost"  # the memory by which the attention tells it of lost tiles


def plain(spec: Spec, tile: TilePlan) -> Parts:
    """The kernel, and the flags that the attention sets."""
    kernel = Kernel("forward_plain", Grid(2 * tile.block_m, query_tiles(spec, tile), resident=1), plain_smem(spec, tile))
    argument = Argument(LOST, "int*", "pointer", LOST, comment="of 16 query rows: whether they have seen what planes cannot hold")
    return Parts((kernel,), (argument,), (Scratch(LOST, "int32", ("batch", "heads", ("q_len", tile.block_m), tile.block_m // 16)),))


def plain_smem(spec: Spec, tile: TilePlan) -> SmemPlan:
    """Its shared memory: query rows and one tile of keys or values, float32, four columns apart."""
    qk, v = spec.head_dim.qk + 4, spec.head_dim.v + 4
    q_bytes = 4 * tile.block_m * qk
    return SmemPlan.of(
        Region(name="Q", symbol="", offset=0, bytes=q_bytes),
        Region(name="K or V", symbol="", offset=q_bytes, bytes=4 * tile.block_n * max(qk, v)),
    )
