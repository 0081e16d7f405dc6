"""Counts of a program's work: passes, bytes, operations, memory, each as a formula and as a number for given lengths."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

import numpy as np
import sympy

from flashgen.dtypes import by_name
from flashgen.expr.tiles.ranges import EMPTY
from flashgen.plan.algorithms import standard
from flashgen.plan.geometry import Sizes
from flashgen.plan.kernel import Extent
from flashgen.plan.kernels.plain import LOST
from flashgen.plan.kernels.split_keys_values import MEMORY
from flashgen.plan.program import Program

Expr = Any  # of sympy
_BLOCKS_AT_ONCE = 256  # whose tiles are looked at together, to bound memory

B, H, H_kv, S_q, S_kv, D, D_v, m, n, W, G = sympy.symbols("B H H_kv S_q S_kv D D_v m n W G", integer=True, positive=True)
WORDS = {
    B: "sequences",
    H: "query heads",
    H_kv: "key/value heads",
    S_q: "queries",
    S_kv: "keys",
    D: "columns of q and k",
    D_v: "columns of v and o",
    m: "queries of a tile",
    n: "keys of a tile",
    W: "pairs of a query tile and a key tile that a head visits; ceil(S_q/m) ceil(S_kv/n) where the mask hides no tile",
    G: "pairs of a block's query tiles and a key tile that a head visits",
}
FORMULAS = {
    "passes": "passes over the keys",
    "read": "bytes read in global memory",
    "written": "bytes written there",
    "dram": "bytes of DRAM, read and written",
    "flops": "floating-point operations of products",
    "exponentials": "exponentials",
    "rescales": "multiplications that rescale",
    "memory": "extra memory, bytes",
}
FLOAT = 4  # bytes, of s and of a running state


@dataclass(frozen=True)
class Counts:
    """The counts of one call, in formulas over `WORDS`.

    `read`, `written`: bytes that the kernels ask of global memory. `dram`: bytes that pass the L2, both ways, if it keeps the keys and
    values of the heads at work and the running states of the rows at work, but not the rows of s at work. `rescales`: multiplications
    that follow a moving maximum, or divide o before the end; where `at_most`, a bound. What a mask's ranges need is not counted.
    """

    passes: Expr
    read: Expr
    written: Expr
    dram: Expr
    flops: Expr  # of products
    exponentials: Expr
    rescales: Expr
    memory: Expr  # bytes at the peak, besides q, k, v, o
    at_most: bool = False

    def at(self, program: Program, sizes: Sizes, values: Mapping[str, Any] = MappingProxyType({})) -> dict[str, int]:
        """The numbers for a call. `values`: what the mask reads; without it the first head counts for all."""
        tile, visited, shared = program.attention.tile, 0, 0
        read = {"b": 0, "h": 0, "hk": 0, **_defaults(program), **values}
        for band in program.attention.ranges.bands(sizes.q_len, sizes.kv_len, read, tile.query_tiles * _BLOCKS_AT_ONCE):
            seen = (band != EMPTY) | program.softmax.materialize
            visited += int(np.count_nonzero(seen))
            together = np.logical_or.reduceat(seen, np.arange(0, len(seen), tile.query_tiles)) if tile.query_tiles > 1 else seen
            shared += int(np.count_nonzero(together))
        known = {B: sizes.batch, H: sizes.heads, H_kv: sizes.kv_heads, S_q: sizes.q_len, S_kv: sizes.kv_len, W: visited, G: shared}
        known |= {D: program.spec.head_dim.qk, D_v: program.spec.head_dim.v, m: tile.block_m, n: tile.block_n}
        return {f.name: int(getattr(self, f.name).subs(known)) for f in fields(self) if f.name != "at_most"}


def _defaults(program: Program) -> dict[str, Any]:
    return {param.name: param.default for param in program.spec.params}


def counts(program: Program) -> Counts:
    """The formulas of a plan; of float32 on a GPU as if planes held everything.

    >>> print(counts(plan(Spec(head_dim=64, dtype="float16"), "sm_90a")).memory)
    0
    """
    slices = program.attention.tile.v_slices  # blocks that compute the same scores, for their columns of v
    softmax, e, lse = program.softmax, program.dtype.bytes, FLOAT * len(program.row_outputs)
    heads, rows, pairs = B * H, m * sympy.ceiling(S_q / m), W * m * n
    passes = sympy.Integer(softmax.passes)
    arrays = e * (heads * S_q * D + B * H_kv * S_kv * (D + D_v))
    output = heads * S_q * (program.out_dtype.bytes * D_v + lse)
    flops = 2 * heads * pairs * (slices * passes * D + D_v)
    if softmax.materialize:
        return _of_scores(program, arrays, output, flops)
    if program.attention.tile.v_part:
        return _of_planes(program, arrays, output, flops)
    if softmax.outer == "kv":
        state = FLOAT * (D_v + 2 + len(program.holes.outputs.statistics))
        read = heads * (G * n * e * (D + D_v) + W * m * (e * D + state) + rows * state)
        written, memory = heads * (W * m + rows) * state + output, heads * rows * state
    else:
        read, written, memory = heads * e * (slices * (S_q * D + W * n * passes * D) + W * n * D_v), output, sympy.Integer(0)
    exponents, moved = _exponentials(program)
    followed = {"normalized": 2 * D_v + 1, "online": D_v + slices, "maximum_and_sum": 1, "maximum": 0}[softmax.steps[0]]
    if not softmax.normalized:
        exponents = moved = followed = 0
    exponentials, rescales = heads * slices * (exponents * pairs + moved * W * m), heads * W * m * sympy.sympify(followed)
    return Counts(
        passes=passes,
        read=read,
        written=written,
        dram=arrays + output,
        flops=flops,
        exponentials=exponentials,
        rescales=rescales,
        memory=memory,
        at_most=softmax.rescale == "lazy",
    )


def _of_scores(program: Program, arrays: Expr, output: Expr, flops: Expr) -> Counts:
    """Scores and probabilities in memory: one kernel writes s, one reads it twice and writes p, one reads p."""
    e, heads, rows = program.dtype.bytes, B * H, m * sympy.ceiling(S_q / m)
    s = heads * rows * n * sympy.ceiling(S_kv / n)
    spans = sympy.ceiling(S_kv / standard.span(program.attention.tile.block_n))  # of key tiles: q is read once for each
    read = heads * e * (rows * spans * D + W * n * (D + D_v)) + s * (2 * FLOAT + e)
    written = s * (FLOAT + e) + output
    dram = arrays + output + s * (3 * FLOAT + 2 * e)  # s is read for its maximum and sum, and again for p
    return Counts(
        passes=sympy.Integer(1),
        read=read,
        written=written,
        dram=dram,
        flops=flops,
        exponentials=s * 5 / 2,
        rescales=s / 2,
        memory=s * (FLOAT + e),
    )


def _of_planes(program: Program, arrays: Expr, output: Expr, flops: Expr) -> Counts:
    """A kernel that writes planes of k and v, or none where they are split in place; the attention, which splits q; one that looks for lost
    tiles. A tile's scale is read once."""
    tile, split, heads, rows = program.attention.tile, program.planes, B * H, sympy.ceiling(S_q / m)
    assert split
    own = [s for s in program.scratch if s.name in (*MEMORY, LOST)]
    words: dict[Extent, Expr] = {
        "batch": B,
        "heads": H,
        "kv_heads": H_kv,
        ("q_len", tile.block_m): rows,
        ("kv_len", tile.block_n): sympy.ceiling(S_kv / n),
    }
    memory = sum(by_name(s.dtype).bytes * sympy.prod([words.get(size, size) for size in s.shape]) for s in own)
    if program.attention.pipeline.in_place:
        once, keys = FLOAT * heads * S_q * D, FLOAT * n * (D + D_v)
    else:
        once, keys = arrays, 2 * split.count * n * (tile.qk_stored + tile.v_stored) + 2 * FLOAT
    read = once + heads * (rows * m / 16 * FLOAT + W * keys)
    normalized = int(program.softmax.normalized)
    exponentials, rescales = heads * W * m * n * normalized, heads * W * m * (D_v + normalized)
    return Counts(
        passes=sympy.Integer(1),
        read=read,
        written=memory + output,
        dram=arrays + 2 * memory + output,
        flops=flops * len(split.products),
        exponentials=exponentials,
        rescales=rescales,
        memory=memory,
    )


def _exponentials(program: Program) -> tuple[int, int]:
    """A pair of a query and a key, and a query row and key tile, whose state follows the maximum."""
    return (2 if program.softmax.passes > 1 else 1), (0 if program.softmax.passes == 3 else 1)
