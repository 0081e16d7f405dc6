"""The kernel that runs before an attention of planes: it splits keys and values into planes, and finds the scale of each tile."""

from flashgen.dtypes import by_name
from flashgen.plan.kernel import Grid, Kernel, Region, SmemPlan, TilePlan
from flashgen.plan.operands.planes import PlanesPlan
from flashgen.plan.program import Argument, Parts, Scratch

PLANE = by_name("float32").multiplied
THREADS = 256
MEMORY = ("k_planes", "v_planes", "k_scales", "v_scales")
SCALE_FLOATS = 4  # that a scale of keys or values takes: 16 bytes, the least that a copy moves
_REGION = Region(
    name="extremes of a warp", symbol="", offset=0, bytes=8, count=THREADS // 32
)  # all of its shared memory: two numbers a warp


def split_keys_values(planes: PlanesPlan, tile: TilePlan) -> Parts:
    """The kernel, and the memory of planes and scales."""
    keys = ("batch", "kv_heads", ("kv_len", tile.block_n))
    k_planes, v_planes, k_scales, v_scales = MEMORY
    kernel = Kernel("split_keys_values", Grid(THREADS, (2, ("kv_len", tile.block_n), "kv_heads", "batch")), SmemPlan.of(_REGION))
    arguments = (
        *(Argument(f"{x}_planes", f"{PLANE.cuda}*", "pointer", f"{x}_planes", comment=f"of {x}, tiles as in shared memory") for x in "kv"),
        *(Argument(f"{x}_scales", "float*", "pointer", f"{x}_scales", comment="of a tile, 16 bytes apart, or NaN") for x in "kv"),
    )
    scratch = (
        Scratch(k_planes, PLANE.name, (*keys, planes.count * tile.block_n * tile.qk_stored)),
        Scratch(v_planes, PLANE.name, (*keys, planes.count * tile.block_n * tile.v_stored)),
        *(Scratch(scales, "float32", (*keys, SCALE_FLOATS)) for scales in (k_scales, v_scales)),
    )
    return Parts((kernel,), arguments, scratch)
