"""Pictures of plans: the tiles of a mask, and the regions of shared memory."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from flashgen.plan.kernel import SmemPlan

NARROW = 5  # percent of the memory: a piece below it has no room for its name


def boxes(classes: NDArray[np.int8], kind: int) -> str:
    """The path of an SVG that fills the cells of one class, a cell a unit: those along a row as one box.

    >>> boxes(np.array([[2, 2, 0], [0, 2, 2]], np.int8), 2)
    'M0 0h2v1h-2zM1 1h2v1h-2z'
    """
    return "".join(_boxes(classes == kind))


def _boxes(cells: NDArray[np.bool_]) -> Iterator[str]:
    edges = np.diff(np.pad(cells, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    for row, line in enumerate(edges):
        for begin, end in zip(np.flatnonzero(line == 1), np.flatnonzero(line == -1), strict=True):
            yield f"M{begin} {row}h{end - begin}v1h{begin - end}z"


def grid(rows: int, columns: int) -> str:
    """The path of the lines between cells.

    >>> grid(2, 1)
    'M0 1h1'
    """
    return "".join((*(f"M0 {y}h{columns}" for y in range(1, rows)), *(f"M{x} 0v{rows}" for x in range(1, columns))))


@dataclass(frozen=True)
class Piece:
    """A piece of shared memory, or what lies in the place of others: `above`."""

    name: str
    symbol: str  # as the emitted text names it
    begin: float  # percent of the memory
    end: float
    text: str  # count, bytes, place
    above: bool = False

    @property
    def shown(self) -> str:
        """Its name where there is room for it."""
        return self.name if self.end - self.begin >= NARROW else ""


def pieces(smem: SmemPlan) -> list[Piece]:
    """The pieces in the order of memory, barriers as one."""
    found: list[Piece] = []
    taken = 0

    def percent(at: int) -> float:
        return round(100 * at / smem.capacity, 3)

    for barrier, group in groupby(sorted(smem.regions, key=lambda region: region.offset), key=lambda region: region.barrier):
        regions = list(group)
        if barrier:
            count, first = sum(region.count for region in regions), regions[0]
            text = f"{count} x {first.bytes} bytes from {first.offset} on: {', '.join(region.name for region in regions)}"
            found.append(Piece("barriers", first.symbol, begin=percent(first.offset), end=percent(regions[-1].end), text=text))
            continue
        for region in regions:
            text = f"{region.count} x {region.bytes} bytes at {region.offset}"
            begin, end = percent(region.offset), percent(region.end)
            above = region.offset < taken
            found.append(Piece(region.name, region.symbol, begin=begin, end=end, text=text, above=above))
            taken = max(taken, region.end)
    return found
