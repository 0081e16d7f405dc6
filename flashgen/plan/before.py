"""The kernels that run before the attention: they find out which keys a query tile sees where the mask compares what tensors hold."""

from dataclasses import replace

from flashgen.expr import KeyRanges
from flashgen.plan.model import Argument, KernelPlan, LaunchPlan, Scratch

_WARP = 32  # threads: one warp a tile, or a piece of one


def with_ranges(launch: LaunchPlan, ranges: KeyRanges, pieces: int = 1) -> LaunchPlan:
    """The launch, with two small kernels and their memory before it for each pairing of the mask; they start early if it does.

    `pieces`: of a query tile that have ranges: itself, and the rows of each warpgroup where those narrow them.
    """
    early = launch.kernels[0].early if launch.kernels else False
    whom = "each query tile" if pieces == 1 else "each query tile, and then each of its warpgroups,"
    for pairing in ranges.pairings:
        queries, keys = ("q_len", ranges.block_m), ("kv_len", ranges.block_n)
        extents = f"extents_{pairing.name}"
        launch = replace(
            launch,
            kernels=(
                KernelPlan(f"key_extents_{pairing.name}", _WARP, 0, (keys, *pairing.axes), early),
                KernelPlan(f"key_ranges_{pairing.name}", _WARP * pieces, 0, (queries, *pairing.axes), early),
                *launch.kernels,
            ),
            arguments=(
                *launch.arguments,
                Argument(extents, "longlong2*", "pointer", extents, comment="the least and the greatest over each key tile"),
                Argument(pairing.name, "int4*", "pointer", pairing.name, comment=f"keys that {whom} may see, and must see"),
            ),
            scratch=(
                *launch.scratch,
                Scratch(extents, "int64", (*pairing.axes, keys, 2)),
                Scratch(pairing.name, "int32", (*pairing.axes, queries, 4 * pieces)),
            ),
        )
    return launch
