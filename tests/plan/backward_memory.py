"""The memory of a backward besides its arguments and results, as docs/limits.md states it."""

import math

from flashgen.dtypes import by_name
from flashgen.expr.meaning.summed import exact_sums
from flashgen.plan.geometry import shape


def allocated(program, sizes):
    """Bytes of all that a program's kernels hand to each other."""
    return sum(math.prod(shape(scratch, sizes)) * by_name(scratch.dtype).bytes for scratch in program.scratch)


def stated(program, sizes):
    """The same by its formula, of masks that ranges tell: nothing in it has queries times keys."""
    spec, main, tile = program.spec, program.main, program.main.tile
    packed, in_order = spec.geometry.packed, spec.deterministic
    q_tiles = (sizes.q_len // tile.block_m + sizes.batch) if packed else sizes.batch * -(-sizes.q_len // tile.block_m)
    k_tiles = (sizes.kv_len // tile.block_n + sizes.batch) if packed else sizes.batch * -(-sizes.kv_len // tile.block_n)
    rows, keys = sizes.heads * q_tiles * tile.block_m, sizes.kv_heads * k_tiles * tile.block_n
    found = 8 * rows  # lse and delta
    if main.finish == "beside":  # the same of few heads, and counts
        heads, tiles = sizes.batch * sizes.kv_heads, -(-sizes.kv_len // tile.block_n)
        places = heads if tiles < 8 else min(heads, 2 + 2 * program.arch.multiprocessors // tiles)
        found += 4 * rows * tile.qk_stored * places // heads + 8 * heads
    elif not (in_order and program.skeleton == "backward_sm80"):
        found += 4 * rows * tile.qk_stored  # dq in float32
    if in_order and program.skeleton != "backward_sm80":
        found += 4 * main.grid.cluster * sizes.heads * q_tiles  # turns
    if main.head_shares > 1:
        found += 4 * main.head_shares * keys * (tile.qk_columns + tile.v_columns)  # dk and dv of each share in float32
    if spec.output or spec.out_dtype:
        found += 2 * (1 if packed else sizes.batch) * sizes.q_len * sizes.heads * spec.head_dim.v  # do as products take it
    return found + sum(104 * elements for name, elements in sizes.summed if name in exact_sums(spec))
