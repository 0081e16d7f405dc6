"""The work of a kernel for given lengths: the tiles by class, FLOPs, bytes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashgen.bench.lists import every_block
from flashgen.cli.errors import CommandError
from flashgen.dtypes import READ, by_name
from flashgen.errors import did_you_mean
from flashgen.expr import KeyRanges, evaluate
from flashgen.expr.meaning.lists import list_of, listed
from flashgen.expr.tiles.lists import listed_tiles, looked_at
from flashgen.expr.tiles.ranges import EMPTY, FULL, PARTIAL
from flashgen.plan import Program
from flashgen.plan.geometry import Sizes
from flashgen.spec import Spec, axes

_ELEMENTS_AT_ONCE = 1 << 22  # of partial tiles, to bound memory
_MOST_ELEMENTS = 1 << 34  # in all, about a minute
_ROWS_AT_ONCE = 256  # of the grid of tiles, to bound memory
_MOST_HEADS = 1 << 16  # sequences and heads, one of which is looked at
_PICTURE = 1024  # rows and columns of a picture at most


@dataclass(frozen=True)
class Picture:
    """The tiles of a head, coarser where they are many."""

    classes: NDArray[np.int8]  # of cells: [ceil(q_tiles / cell[0]), ceil(kv_tiles / cell[1])]
    cell: tuple[int, int]  # tiles down and across that a cell stands for


@dataclass(frozen=True)
class Work:
    """The work of the query heads on one key/value head, one sequence."""

    q_len: int
    kv_len: int
    heads: int
    tiles: Mapping[str, int]  # empty, partial, full
    visible: float  # share of the pairs of a query and a key
    flops: int  # of the products of visible pairs
    executed_flops: int  # of the products of tiles that rows take
    bytes: int  # of q, k, v, o, and what is written of each row, each once
    loaded_bytes: int  # of key and value tiles into shared memory
    picture: Picture = field(compare=False, repr=False)

    def to_json(self) -> dict[str, Any]:
        """The work as `--json` prints it, without the picture."""
        return {k: dict(v) if k == "tiles" else v for k, v in vars(self).items() if k != "picture"}


def measure(program: Program, q_len: int, kv_len: int, values: Mapping[str, Any]) -> Work:
    """The work of a plan; `values` holds what the mask may read besides indices: b, h, hk, params, tensors."""
    spec, tile = program.spec, program.attention.tile
    heads, columns = spec.group or 1, spec.head_dim.qk + spec.head_dim.v
    found = _look(program, q_len, kv_len, values)
    loaded = found.counts[PARTIAL] + found.counts[FULL]
    computed = sum(
        int(np.count_nonzero(band)) for band in _bands(program, program.attention.computed, (q_len, kv_len), values, _ROWS_AT_ONCE)
    )
    computed *= program.attention.computed.block_m * tile.block_n
    by_row = heads * q_len * (spec.head_dim.v * program.out_dtype.bytes + 4 * len(program.row_outputs))
    return Work(
        q_len=q_len,
        kv_len=kv_len,
        heads=heads,
        tiles={name: found.counts[kind] for name, kind in (("empty", EMPTY), ("partial", PARTIAL), ("full", FULL))},
        visible=found.pairs / (q_len * kv_len),
        flops=2 * heads * found.pairs * columns,
        executed_flops=2 * heads * computed * (tile.qk_columns + tile.v_columns) * tile.v_slices,
        bytes=(heads * q_len * spec.head_dim.qk + kv_len * columns) * program.dtype.bytes + by_row,
        loaded_bytes=heads * loaded * tile.block_n * columns * program.dtype.bytes,
        picture=Picture(np.concatenate(found.picture), found.cell),
    )


@dataclass
class _Grid:
    """A grid of tiles, counted up to some row of it."""

    cell: tuple[int, int]
    counts: list[int]  # of tiles, by class
    pairs: int = 0  # of a query and a key that it sees
    picture: list[NDArray[np.int8]] = field(default_factory=list)  # rows of cells


def _look(program: Program, q_len: int, kv_len: int, values: Mapping[str, Any]) -> _Grid:
    """Goes over the tiles, a band of rows at a time. Raises CommandError where too many are partial to look into each."""
    m, n = program.attention.tile.block_m, program.attention.tile.block_n
    down, across = (-(-length // (block * _PICTURE)) for length, block in ((q_len, m), (kv_len, n)))
    grid, rows = _Grid((down, across), [0, 0, 0]), -(-_ROWS_AT_ONCE // down) * down
    for i, band in enumerate(_bands(program, program.attention.ranges, (q_len, kv_len), values, rows)):
        grid.counts = [count + int(np.count_nonzero(band == kind)) for kind, count in enumerate(grid.counts)]
        if grid.counts[PARTIAL] * m * n > _MOST_ELEMENTS:
            raise _too_many(q_len, kv_len)
        grid.pairs += _pairs(program, band, i * rows, q_len, kv_len, values)
        grid.picture.append(coarser(band, down, across))
    return grid


def classes(program: Program, q_len: int, kv_len: int, values: Mapping[str, Any]) -> NDArray[np.int8]:
    """The classes of all tiles of a head, [query tiles, key tiles]."""
    return np.concatenate(list(_bands(program, program.attention.ranges, (q_len, kv_len), values, _ROWS_AT_ONCE)))


def _bands(
    program: Program, ranges: KeyRanges, lengths: tuple[int, int], values: Mapping[str, Any], rows: int
) -> Iterator[NDArray[np.int8]]:
    """The classes of tiles, a band of rows at a time: those that the mask's ranges have, by lists where there are some."""
    bands, blocks = ranges.bands(*lengths, values, rows), program.spec.blocks
    tile, known = (ranges.block_m, ranges.block_n), {**values, "q_len": lengths[0], "kv_len": lengths[1]}
    if not program.dealing.listed:
        yield from bands
        return
    if not blocks:
        if lengths[0] * lengths[1] > _MOST_ELEMENTS:
            raise _too_many(*lengths)
        yield from (looked_at(program.expressions.mask, band, tile, known, i * rows) for i, band in enumerate(bands))
        return
    taken = listed_tiles(blocks, list_of(blocks, values[blocks.lists], values), tile, lengths)
    for i, band in enumerate(bands):
        kinds = np.minimum(band, np.int8(PARTIAL)) if blocks.by_key else band  # there each key is asked for
        yield np.where(taken[i * rows : i * rows + len(band)], kinds, np.int8(EMPTY))


def _too_many(q_len: int, kv_len: int) -> CommandError:
    return CommandError(
        f"{q_len} queries and {kv_len} keys: the mask cuts so many tiles that it would be evaluated at more than {_MOST_ELEMENTS} "
        "pairs of a query and a key to count those that see each other. Give a shorter --q-len or --kv-len"
    )


def coarser(classes: NDArray[np.int8], down: int, across: int) -> NDArray[np.int8]:
    """The classes of cells of so many tiles: that of all their tiles, or partial."""
    low, high = classes, classes
    for axis, step in enumerate((down, across)):
        starts = np.arange(0, classes.shape[axis], step)
        low, high = np.minimum.reduceat(low, starts, axis), np.maximum.reduceat(high, starts, axis)
    return np.where(low == high, low, np.int8(PARTIAL))


def _pairs(program: Program, band: NDArray[np.int8], top: int, q_len: int, kv_len: int, values: Mapping[str, Any]) -> int:
    """Pairs of a query and a key that it sees, in tiles from row `top` on: all of a full tile, of a partial one as the mask says."""
    m, n = program.attention.tile.block_m, program.attention.tile.block_n
    first_rows = (top + np.arange(len(band))) * m
    pairs = int(((np.minimum(first_rows + m, q_len) - first_rows) * (band == FULL).sum(1)).sum()) * n
    rows, columns = np.divmod(np.flatnonzero(band == PARTIAL), max(1, band.shape[1]))
    together = max(1, _ELEMENTS_AT_ONCE // (m * n))
    for first in range(0, len(rows), together):
        q_idx = first_rows[rows[first : first + together], None, None] + np.arange(m)[:, None]
        kv_idx = columns[first : first + together, None, None] * n + np.arange(n)
        known = {**values, "q_idx": q_idx, "kv_idx": kv_idx, "q_len": q_len, "kv_len": kv_len}
        seen = evaluate(program.expressions.mask, known) & (q_idx < q_len) & (kv_idx < kv_len)
        if (blocks := program.spec.blocks) and blocks.by_key:
            own = list_of(blocks, values[blocks.lists], values)
            seen = seen & np.stack([listed(blocks, own, q[:, 0], k[0]) for q, k in zip(q_idx, kv_idx, strict=True)])
        pairs += int(seen.sum())
    return pairs


def read_values(spec: Spec, given: Sequence[str], q_len: int, kv_len: int) -> dict[str, Any]:
    """The values of `--param NAME=VALUE`, over the defaults: b, h, hk and floats 0, integers kv_len, bits 1, bools true, blocks listed.

    Raises CommandError for a name that is neither a param, a tensor nor b, h, hk, or a value that is no number.
    """
    values: dict[str, Any] = {"b": 0, "h": 0, "hk": 0, **{p.name: p.default for p in spec.params}}
    for t in spec.tensors:
        integer = -1 if t.shape[-1] == axes.ALIASES["q_words"] else kv_len
        values[t.name] = {"int": integer, "long long": integer, "float": 0.0, "bool": True}[READ[t.dtype][0]]
    for item in given:
        name, _, text = item.partition("=")
        if name not in values:
            raise CommandError(f"--param {item}: nothing is called {name!r}; {did_you_mean(name, values)}")
        kind = type(values[name])
        try:
            values[name] = bool(int(text)) if kind is bool else kind(text)
        except ValueError:
            raise CommandError(f"--param {item}: {name} takes {'an integer' if kind is int else 'a number'}") from None
        if name in ("b", "h", "hk") and not 0 <= values[name] < _MOST_HEADS:
            raise CommandError(f"--param {item}: {name} takes an index from 0 to {_MOST_HEADS - 1}")
    sizes = Sizes(batch=values["b"] + 1, q_len=q_len, kv_len=kv_len, heads=values["h"] + 1, kv_heads=values["hk"] + 1)
    for tensor in spec.tensors:
        try:
            one = np.array(values[tensor.name], by_name(tensor.dtype).numpy)
        except OverflowError:
            raise CommandError(f"--param {tensor.name}={values[tensor.name]}: {tensor.name} holds numbers of {tensor.dtype}") from None
        values[tensor.name] = np.broadcast_to(one, sizes.binding(tensor, kv_len).shape(tensor))
    if spec.blocks:
        values[spec.blocks.lists] = every_block(spec, sizes, np)
    return values
