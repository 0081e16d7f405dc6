"""Tells how an output is wrong as well as a race is told: which elements, in which tiles, and NaN, a factor or a shift."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashgen.expr.meaning.bounds import distances
from flashgen.plan.kernel import WARPGROUP_ROWS

Array = NDArray[Any]
AXES = ("batch", "head", "row", "column")
ALIKE = 0.1  # of the median that quartiles may lie apart, for one factor or one difference to tell of all; roundings are in there
NEAR = 0.05  # of the error that must be left for a shift to explain it
SHIFTS = {"row": (1, 8, 16, WARPGROUP_ROWS), "column": (1, 2, 8, 16, 64), "head": (1,), "batch": (1,)}
MOST_RANGES = 4


def differences(name: str, found: Array, between: tuple[Array, Array], limit: float, block_m: int = 0, axes: Sequence[str] = AXES) -> str:
    """Lines for people that tell which elements are off by more than a limit; empty if none is.

    found: [B, Hq, Sq, D] or [B, Hq, Sq], by the names in `axes`, and bounds alike; `block_m`: the rows of a query tile, 0 for none.

    >>> print(differences("lse", np.float32([[[1, 2, 6, 8]]]), (np.float64([[[1, 2, 3, 4]]]),) * 2, 0.1))
    lse: 2 of 4 elements are off, by up to 4 where 0.1 is allowed
      where: batch 0, head 0, rows 2-3 of 4
      how: each about 2 times what it should be
      the worst: [0, 0, 3] is 8, not 4
    """
    off = distances(found, between)
    bad = off > limit
    if not bad.any():
        return ""
    x, want = np.asarray(found).astype(np.float64), (between[0] + between[1]) / 2
    finite = bad & np.isfinite(x) & np.isfinite(want)
    counts = {"of them NaN": np.count_nonzero(bad & np.isnan(x)), "infinite": np.count_nonzero(bad & np.isinf(x))}
    said = [f"{count} {what}" for what, count in counts.items() if count]
    if finite.any():
        said.append(f"by up to {off[finite].max():.3g} where {limit:.3g} is allowed")
    at = worst(found, between)
    names = axes[: bad.ndim]
    lines = [
        f"{name}: {np.count_nonzero(bad)} of {bad.size} elements are off, {', '.join(said)}",
        f"  where: {', '.join(whereabouts(bad, names, block_m))}",
        *(f"  how: {how}" for how in kinds(x, want, bad, finite, names)),
        f"  the worst: {list(at)} is {x[at]:.6g}, not {want[at]:.6g}",
    ]
    return "\n".join(lines)


def worst(found: Array, between: tuple[Array, Array]) -> tuple[int, ...]:
    """The index of the element that is farthest from its bounds; NaN before all others."""
    off = distances(found, between)
    return tuple(int(i) for i in np.unravel_index(np.argmax(off), off.shape))


def whereabouts(bad: Array, axes: Sequence[str], block_m: int) -> Iterator[str]:
    """The indices that are off along each axis, and what of a tile they are."""
    along = [np.flatnonzero(bad.any(axis=tuple(j for j in range(bad.ndim) if j != i))) for i in range(bad.ndim)]
    for axis, found, size in zip(axes, along, bad.shape, strict=True):
        plural = {"batch": "batches"}.get(axis, axis + "s")
        if len(found) == size > 1:
            yield f"all {size} {plural}"
        else:
            yield (f"{axis} {found[0]}" if len(found) == 1 else f"{plural} {ranges(found)}") + (f" of {size}" if size > 1 else "")
    if block_m and "row" in axes:
        yield from tiles(along[axes.index("row")], block_m, bad.shape[axes.index("row")])
    if bad.sum() < np.prod([len(found) for found in along]):
        yield "not all of them"


def tiles(rows: Array, block_m: int, length: int) -> Iterator[str]:
    """The query tiles, and the warpgroups of them, that hold all of some rows."""
    if len(of := np.unique(rows // block_m)) < -(-length // block_m):
        yield f"query tile{'s' if len(of) > 1 else ''} {ranges(of)} of {block_m} rows"
    groups = np.unique(rows % block_m // WARPGROUP_ROWS)
    if block_m > WARPGROUP_ROWS and len(groups) == 1:
        yield f"warpgroup {groups[0]}"


def ranges(found: Array) -> str:
    """Ascending numbers as "0-3, 8, 12-15"; of many ranges the first ones."""
    pieces = np.split(found, np.flatnonzero(np.diff(found) > 1) + 1)
    texts = [f"{piece[0]}-{piece[-1]}" if len(piece) > 1 else f"{piece[0]}" for piece in pieces]
    return ", ".join(texts[:MOST_RANGES]) + (f" and {len(texts) - MOST_RANGES} more ranges" if len(texts) > MOST_RANGES else "")


def kinds(x: Array, want: Array, bad: Array, finite: Array, axes: Sequence[str]) -> Iterator[str]:
    """A sentence that tells what the elements that are off have in common."""
    if not finite.any():
        return
    had, due = x[finite], want[finite]
    if not had.any():
        yield "each is 0"
    elif len(had) > 1 and alike(ratio := had[due != 0] / due[due != 0] - 1):
        yield f"each about {1 + np.median(ratio):.3g} times what it should be"
    elif len(had) > 1 and alike(more := had - due):
        yield f"each about {np.median(more):.3g} more than it should be"
    elif shifted := shift(x, want, bad, axes):
        yield shifted


def alike(values: Array) -> bool:
    """True if the middle half of the values lies close together."""
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75)) if len(values) else (0, 0, 1)
    return bool(high - low <= ALIKE * abs(middle))


def shift(x: Array, want: Array, bad: Array, axes: Sequence[str]) -> str:
    """ "they hold what belongs 8 rows further on", if one shift explains nearly all of the error."""
    error = np.median(np.abs(x - want)[bad & np.isfinite(x)])
    for i, axis in enumerate(axes):
        for distance in (sign * far for far in SHIFTS[axis] if far < x.shape[i] for sign in (1, -1)):
            moved = np.roll(want, -distance, axis=i)
            if np.median(np.abs(x - moved)[bad & np.isfinite(x)]) < NEAR * error:
                far = f"{abs(distance)} {axis}{'s' if abs(distance) > 1 else ''}"
                return f"they hold what belongs {far} {'further on' if distance > 0 else 'before'}"
    return ""
