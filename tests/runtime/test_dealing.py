"""Counters that blocks deal by: one a stream."""

import itertools
import threading

import pytest

from flashgen.arch import by_name
from flashgen.runtime import dealing
from flashgen.runtime.device import Device

driver = pytest.importorskip("cuda.bindings.driver", reason="needs the cuda13 or cuda12 extra")


def test_counters_are_those_of_a_stream_and_per_thread_those_of_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    made = iter(range(1, 9))
    monkeypatch.setattr(dealing, "zeros", lambda _: next(made))
    monkeypatch.setattr(dealing, "_COUNTERS", {})
    monkeypatch.setattr(dealing, "_OF_THREAD", dealing._OfThread())
    target, per_thread, found = Device(0, "H", by_name("sm_90a"), 132, None, 77), int(driver.CU_STREAM_PER_THREAD), []

    def ask() -> None:
        found.append([dealing.counter(target, stream) for stream in (5, per_thread, 5, per_thread)])

    ask()
    other = threading.Thread(target=ask)
    other.start()
    other.join()
    assert found == [[1, 2, 1, 2], [1, 3, 1, 3]]


def test_counters_are_made_many_at_once_and_never_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(dealing, "_zeros", lambda _, nbytes: made.append(nbytes) or len(made) << 20)
    monkeypatch.setattr(dealing, "_FREE", {})
    target = Device(0, "H", by_name("sm_90a"), 132, None, 77)
    found = sorted(dealing.zeros(target) for _ in range(200))
    assert len(made) == 2
    assert all(b - a >= 32 for a, b in itertools.pairwise(found))
    assert all(at % (1 << 20) <= made[0] - 32 for at in found)
