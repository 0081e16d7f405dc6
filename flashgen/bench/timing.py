"""Compares runs: in turns, each several times in a row between two readings of a clock; medians count."""

import math
import statistics
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from flashgen.runtime.clock import Reading

Run = Callable[[], Any]
Name = TypeVar("Name", bound=Hashable)
_READING_MS = 4.0  # that calls in a row shall take together
_FEWEST_CALLS, _MOST_CALLS = 2, 64


class Clock(Protocol):
    """Reads the time of calls; `flashgen.runtime.clock.DeviceClock` does on a GPU."""

    def read(self, run: Run, calls: int) -> Reading:
        """Reads the time of so many calls in a row."""


@dataclass(frozen=True)
class Timing:
    """Medians of one call."""

    ms: float  # on the device
    host_us: float  # until it was queued


def measure(
    runs: Mapping[Name, Run], clock: Clock, repetitions: int, advance: Callable[[dict[Name, Timing]], None] = lambda _: None
) -> dict[Name, Timing]:
    """The time of every run, by name. They take turns, and each repetition begins with another one: a place in the order counts too.

    >>> measure({"a": attn, "b": peer}, DeviceClock(), 11)["a"].ms

    `advance` is called after each repetition with the medians so far.
    """
    calls = {name: _calls(clock, run) for name, run in runs.items()}
    readings: dict[Name, list[Reading]] = {name: [] for name in runs}
    names, found = list(runs), dict[Name, Timing]()
    for repetition in range(repetitions):
        first = repetition % max(1, len(names))
        for name in names[first:] + names[:first]:
            readings[name].append(clock.read(runs[name], calls[name]))
        found = {name: median(taken) for name, taken in readings.items()}
        advance(found)
    return found


def median(readings: list[Reading]) -> Timing:
    """The median of one run's readings."""
    return Timing(statistics.median(r.device_ms for r in readings), 1e3 * statistics.median(r.host_ms for r in readings))


def _calls(clock: Clock, run: Run) -> int:
    """The number of calls to time in a row, after some that warm up."""
    ms = min(clock.read(run, 2).device_ms for _ in range(2))
    return max(_FEWEST_CALLS, min(_MOST_CALLS, math.ceil(_READING_MS / max(ms, 1e-3))))
