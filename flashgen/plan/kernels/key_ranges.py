"""The kernels that run before the products where a mask compares what tensors hold: they find out which keys a query tile sees, or in a
backward which rows see a key tile."""

from flashgen.expr import KeyRanges, RowRanges
from flashgen.expr.tiles.extents import Pairing
from flashgen.plan.kernel import Grid, Kernel
from flashgen.plan.program import Argument, Parts, Scratch

_WARP = 32  # threads: one warp a tile, or a piece of one


def key_ranges(ranges: KeyRanges, *, early: bool, pieces: int, runs: bool = False) -> Parts:
    """Two small kernels and their memory for each pairing of the mask; they start early if the attention does.

    `pieces`: of a query tile that have ranges: itself, and the rows of each warpgroup where those narrow them.
    `runs`: those of each key tile are found too.
    """
    whom = "each query tile" if pieces == 1 else "each query tile, and then each of its warpgroups,"
    found = Parts((), ())
    for pairing in ranges.pairings:
        queries, keys = ("q_len", ranges.block_m), ("kv_len", ranges.block_n)
        extents = f"extents_{pairing.name}"
        kernels = (
            Kernel(f"key_extents_{pairing.name}", Grid(_WARP, (keys, *pairing.axes), early)),
            Kernel(f"key_ranges_{pairing.name}", Grid(_WARP * pieces, (queries, *pairing.axes), early)),
        )
        arguments = (
            Argument(extents, "longlong2*", "pointer", extents, comment="the least and the greatest over each key tile"),
            Argument(pairing.name, "int4*", "pointer", pairing.name, comment=f"keys that {whom} may see, and must see"),
        )
        scratch = (
            Scratch(extents, "int64", (*pairing.axes, keys, 2)),
            Scratch(pairing.name, "int32", (*pairing.axes, queries, 4 * pieces)),
        )
        found = Parts((*kernels, *found.kernels), (*found.arguments, *arguments), (*found.scratch, *scratch))
        found = _with_runs(found, pairing, keys) if runs else found
    return found


def _with_runs(found: Parts, pairing: Pairing, keys: tuple[str, int]) -> Parts:
    of_tile = "of each key tile: its first and last number, the key where the last begins, 1 if there is no other"
    arguments = (
        Argument(f"runs_{pairing.name}", "int4*", "pointer", f"runs_{pairing.name}", comment=of_tile),
        Argument(
            f"rows_{pairing.name}",
            "int2*",
            "pointer",
            f"rows_{pairing.name}",
            comment="of each row: begin and end of the keys that hold its number",
        ),
    )
    scratch = (
        Scratch(f"runs_{pairing.name}", "int32", (*pairing.axes, keys, 4)),
        Scratch(f"rows_{pairing.name}", "int32", (*pairing.axes, "q_len", 2)),
    )
    return Parts(found.kernels, (*found.arguments, *arguments), (*found.scratch, *scratch))


def row_ranges(ranges: RowRanges) -> Parts:
    """Two small kernels and their memory for each pairing of a backward's mask."""
    found = Parts((), ())
    for pairing in ranges.pairings:
        queries, keys = ("q_len", ranges.block_m), ("kv_len", ranges.block_n)
        extents = f"extents_{pairing.name}"
        kernels = (
            Kernel(f"row_extents_{pairing.name}", Grid(_WARP, (queries, *pairing.axes))),
            Kernel(f"row_ranges_{pairing.name}", Grid(_WARP, (keys, *pairing.axes))),
        )
        arguments = (
            Argument(extents, "longlong2*", "pointer", extents, comment="the least and the greatest over each query tile"),
            Argument(pairing.name, "int4*", "pointer", pairing.name, comment="rows that may see each key tile, and must see it"),
        )
        scratch = (
            Scratch(extents, "int64", (*pairing.axes, queries, 2)),
            Scratch(pairing.name, "int32", (*pairing.axes, keys, 4)),
        )
        found = Parts((*kernels, *found.kernels), (*found.arguments, *arguments), (*found.scratch, *scratch))
    return found
