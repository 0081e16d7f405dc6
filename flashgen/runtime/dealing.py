"""The memory that kernels deal query tiles by: counters, one a stream, and the half of the L2 near each multiprocessor."""

import threading

from flashgen.runtime.device import Device, check
from flashgen.runtime.halves import table

__all__ = ["PER_THREAD", "counter", "halves", "zeros"]

PER_THREAD = 2  # CU_STREAM_PER_THREAD: one handle for a stream of each thread
_COUNTER_BYTES, _AT_ONCE = 32, 128  # three integers in a sector of the L2 of their own; so many are made together
_COUNTERS: dict[tuple[int, int], int] = {}  # addresses, by device and stream, never freed
_HALVES: dict[int, int] = {}  # addresses, by device
_FREE: dict[int, list[int]] = {}  # counters that nobody has yet, by device
_MAKING = threading.Lock()


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
    """The address of a counter that nobody else has. Each captured launch takes one, and nobody tells when its graph ends."""
    with _MAKING:
        free = _FREE.setdefault(target.ordinal, [])
        if not free:
            start = _zeros(target, _COUNTER_BYTES * _AT_ONCE)
            free += range(start, start + _COUNTER_BYTES * _AT_ONCE, _COUNTER_BYTES)
        return free.pop()


def _zeros(target: Device, nbytes: int) -> int:
    from cuda.bindings import driver

    with target.aside() as stream:
        address = check(*driver.cuMemAlloc(nbytes))
        check(*driver.cuMemsetD8Async(address, 0, nbytes, stream))
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
