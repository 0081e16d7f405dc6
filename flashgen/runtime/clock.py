"""Time on the GPU, between events around calls that the host queues while the GPU is kept waiting: host time counts for nobody."""

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from flashgen.errors import BackendError
from flashgen.runtime import arrays, device

_WAIT = r"""
extern "C" __global__ void wait(long long nanoseconds) {
  long long begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); while (now - begin < nanoseconds);
}
"""
_FIRST_WAIT, _LONGEST_WAIT = 500_000, 64_000_000  # nanoseconds


class Reading(NamedTuple):
    """The time of one of several calls in a row, in milliseconds."""

    device_ms: float
    host_ms: float  # until it was queued


class DeviceClock:
    """Reads the time of calls in the current stream of CuPy, which is PyTorch's as long as nobody changes either. Raises BackendError."""

    def __init__(self) -> None:
        if reason := device.missing():
            raise BackendError(reason)
        self._cupy = arrays.cupy()
        self._start, self._end = self._cupy.cuda.Event(), self._cupy.cuda.Event()
        self._wait_ns = _FIRST_WAIT

    def read(self, run: Callable[[], Any], calls: int) -> Reading:
        """The time of so many calls in a row. The GPU waits until all are queued, longer from then on if the host was slower.

        A call that waits for the GPU itself is never queued early: its host time counts, as it does for its users.
        """
        wait_ns = self._wait_ns
        while True:
            found, early = self._once(run, calls, wait_ns)
            if early:
                self._wait_ns = wait_ns
            if early or wait_ns >= _LONGEST_WAIT:
                return found
            wait_ns *= 4

    def _once(self, run: Callable[[], Any], calls: int, wait_ns: int) -> tuple[Reading, bool]:
        """The time of the calls, and True if all were queued before the first began."""
        _wait_kernel()((1,), (1,), (np.int64(wait_ns),))
        self._start.record()
        begin = time.perf_counter()
        for _ in range(calls):
            run()
        host_ms = 1e3 * (time.perf_counter() - begin)
        early = not self._start.done
        self._end.record()
        self._end.synchronize()
        return Reading(self._cupy.cuda.get_elapsed_time(self._start, self._end) / calls, host_ms / calls), early


@functools.cache
def _wait_kernel() -> Any:
    return arrays.cupy().RawKernel(_WAIT, "wait")
