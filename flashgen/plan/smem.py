"""Shared memory as a list of regions, laid one after the other."""

from collections.abc import Iterable
from dataclasses import replace

from flashgen.plan.kernel import Region, SmemPlan

Piece = tuple[str, str, int, int, int]  # name, symbol, bytes of one, count, alignment


def lay_out(
    pieces: Iterable[Piece], barriers: Iterable[tuple[str, str, int]], capacity: int, overlays: Iterable[Iterable[Piece]] = ()
) -> SmemPlan | str:
    """The map of shared memory, or why it does not fit. An overlay's pieces lie from the first byte on again, when those are not needed.

    >>> lay_out([("Q", "Q", 1024, 1, 1024)], [("Q full", "Q_FULL", 1)], 2048).bytes
    1032
    >>> lay_out([("Q", "Q", 4096, 1, 1024)], [], 2048)
    'takes 4096 bytes of shared memory, 2048 are there'
    """
    regions, end = [], 0
    for layer in (pieces, *overlays):
        begin = 0
        for name, symbol, size, count, alignment in layer:
            begin = -(-begin // alignment) * alignment
            regions.append(Region(name=name, symbol=symbol, offset=begin, bytes=size, count=count))
            begin += size * count
        end = max(end, begin)
    barriers = tuple(barriers)
    total = end + 8 * sum(count for _, _, count in barriers)
    if total > capacity:
        return f"takes {total} bytes of shared memory, {capacity} are there"
    for name, symbol, count in barriers:
        regions.append(Region(name=name, symbol=symbol, offset=end, bytes=8, count=count, barrier=True))
        end += 8 * count
    return SmemPlan(tuple(regions), total, capacity)


def repeated(smem: SmemPlan | str, times: int) -> SmemPlan | str:
    """The same memory for each of several warps, one behind the other, or why that does not fit. Regions are those of the first.

    >>> repeated(lay_out([("Q", "Q", 1024, 1, 1024)], [], 4096), 4).bytes
    4096
    """
    if isinstance(smem, str) or times == 1:
        return smem
    total = smem.bytes * times
    return replace(smem, bytes=total) if total <= smem.capacity else f"takes {total} bytes of shared memory, {smem.capacity} are there"
