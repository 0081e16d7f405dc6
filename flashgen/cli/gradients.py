"""The work of a backward for given lengths, as `flashgen explain` tells it: query tiles by class, FLOPs, bytes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flashgen.cli.work import Work
from flashgen.dtypes import by_name
from flashgen.expr import TileRanges
from flashgen.expr.tiles.ranges import EMPTY, FULL, PARTIAL
from flashgen.interpret.backward import query_tiles
from flashgen.plan import Program
from flashgen.plan.geometry import Sizes, shape
from flashgen.spec import Spec

_BANDS = 256  # rows of the grid of tiles at a time, to bound memory


@dataclass(frozen=True)
class BackwardWork:
    """The work of the query heads on one key/value head, one sequence."""

    tiles: Mapping[str, int]  # query tiles of all key tiles: empty, partial, full
    flops: int  # of the products of visible pairs
    executed_flops: int  # of the products of tiles
    bytes: int  # of q, k, v, o, do, lse, dq, dk, dv, each once
    memory: int  # bytes besides those

    def to_json(self) -> dict[str, Any]:
        """The work as `--json` prints it."""
        return {**vars(self), "tiles": dict(self.tiles)}


def measure_backward(program: Program, forward: Work, values: Mapping[str, Any]) -> BackwardWork:
    """The work of a backward's plan, for the lengths of the forward's; `values` as of `flashgen.cli.work.measure`.

    Of a pair of a query and a key: s and dp, then dv, dk and dq. Where dq has a kernel of its own, that has s and dp of its own.
    """
    spec, heads, lengths = program.spec, forward.heads, (forward.q_len, forward.kv_len)
    qk, v = spec.head_dim.qk, spec.head_dim.v
    found = query_tiles(program, {**values, "q_len": forward.q_len, "kv_len": forward.kv_len})
    separate, count = program.tiled[1:], [int(np.count_nonzero(found == kind)) for kind in (EMPTY, PARTIAL, FULL)]
    executed = _met(program.main.ranges, count) * ((2 if separate else 3) * program.main.tile.qk_columns + 2 * program.main.tile.v_columns)
    for kernel in separate:
        counts = count if program.dealing.listed else _counts(kernel.ranges, lengths, values)
        executed += _met(kernel.ranges, counts) * (2 * kernel.tile.qk_columns + kernel.tile.v_columns)
    sizes = _sizes(spec, Sizes(batch=1, q_len=forward.q_len, kv_len=forward.kv_len, heads=heads, kv_heads=1), values)
    rows, keys = heads * forward.q_len, forward.kv_len * 2 * (qk + v)
    of_rows = 2 * qk * program.dtype.bytes + 2 * v * program.out_dtype.bytes + (4 if spec.softmax.normalized else 0)
    return BackwardWork(
        tiles={name: count[kind] for name, kind in (("empty", EMPTY), ("partial", PARTIAL), ("full", FULL))},
        flops=2 * heads * round(forward.visible * forward.q_len * forward.kv_len) * (3 * qk + 2 * v),
        executed_flops=2 * heads * executed,
        bytes=rows * of_rows + keys * program.dtype.bytes,
        memory=sum(math.prod(shape(scratch, sizes)) * by_name(scratch.dtype).bytes for scratch in program.scratch),
    )


def _sizes(spec: Spec, sizes: Sizes, values: Mapping[str, Any]) -> Sizes:
    """The sizes with the elements of tensors; an axis whose length nothing but an array tells counts as one entry."""
    shapes = {t.name: np.shape(values[t.name]) if t.name in values else sizes.binding(t, 1).shape(t) for t in spec.tensors}
    return replace(sizes, summed=tuple((name, math.prod(shape)) for name, shape in shapes.items()))


def _counts(ranges: TileRanges, lengths: tuple[int, int], values: Mapping[str, Any]) -> list[int]:
    """Tiles by class."""
    bands = list(ranges.bands(*lengths, values, _BANDS))
    return [sum(int(np.count_nonzero(band == kind)) for band in bands) for kind in (EMPTY, PARTIAL, FULL)]


def _met(ranges: TileRanges, counts: list[int]) -> int:
    """Pairs of a query and a key in tiles that are met."""
    return (counts[PARTIAL] + counts[FULL]) * ranges.block_m * ranges.block_n
