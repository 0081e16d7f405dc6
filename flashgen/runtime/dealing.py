"""The memory that kernels deal query tiles by: counters, one a stream, and the half of the L2 near each multiprocessor."""

import threading

from flashgen.runtime.device import Device, check
from flashgen.runtime.halves import table

__all__ = ["PER_THREAD", "counter", "halves", "zeros"]

PER_THREAD = 2  # CU_STREAM_PER_THREAD: one handle for a stream of each thread
_COUNTER_INTS = 3
_COUNTERS: dict[tuple[int, int], int] = {}  # addresses, by device and stream; 12 bytes each, never freed
_HALVES: dict[int, int] = {}  # addresses, by device


class _OfThread(threading.local):
    """The counters for the streams that a thread has of its own."""

    def __init__(self) -> None:
        self.counters: dict[tuple[int, int], int] = {}


_OF_THREAD = _OfThread()


def counter(target: Device, stream: int) -> int:
    """The address of zeros for the kernels of a stream, which leave them zero."""
    key, known = (target.ordinal, stream), _OF_THREAD.counters if stream == PER_THREAD else _COUNTERS
    if key not in known:
        known.setdefault(key, zeros(target))
    return known[key]


def zeros(target: Device) -> int:
    """The address of a counter that nobody else has."""
    from cuda.bindings import driver

    with target.aside() as stream:
        address = check(*driver.cuMemAlloc(4 * _COUNTER_INTS))
        check(*driver.cuMemsetD32Async(address, 0, _COUNTER_INTS, stream))
    return int(address)


def halves(target: Device) -> int:
    """The address of a table on the device: the half of the L2, 0 or 1, by the number of a multiprocessor. Raises BackendError."""
    from cuda.bindings import driver

    if target.ordinal not in _HALVES:
        found = table(target)
        with target.aside() as stream:
            address = check(*driver.cuMemAlloc(found.nbytes))
            check(*driver.cuMemcpyHtoDAsync(address, found.ctypes.data, found.nbytes, stream))
        _HALVES.setdefault(target.ordinal, int(address))
    return _HALVES[target.ordinal]
