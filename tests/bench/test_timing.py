"""Runs take turns, medians stand; by a clock that a test winds."""

from hypothesis import given
from hypothesis import strategies as st

from flashgen.bench.timing import measure
from flashgen.runtime.clock import Reading


class FakeClock:
    """Says what each run has to say, in turn, and remembers who was asked."""

    def __init__(self):
        self.asked = []

    def read(self, run, calls):
        ms = run()
        self.asked.append((run, calls))
        return Reading(ms, ms / 1000)


def constant(ms):
    return lambda: ms


@given(st.lists(st.floats(0.001, 50), min_size=1, max_size=5), st.integers(1, 7))
def test_constant_runs_take_what_they_take(times, repetitions):
    runs = {str(i): constant(ms) for i, ms in enumerate(times)}
    found = measure(runs, FakeClock(), repetitions)
    assert [found[name].ms for name in runs] == times
    assert all(0.999 * timing.ms < timing.host_us < 1.001 * timing.ms for timing in found.values())


def test_they_take_turns_and_each_is_first_in_its_turn():
    runs, clock = {name: constant(1.0) for name in "abc"}, FakeClock()
    measure(runs, clock, 3)
    names = {run: name for name, run in runs.items()}
    warm = 2 * len(runs)
    assert "".join(names[run] for run, _ in clock.asked[warm:]) == "abcbcacab"


def test_an_outlier_does_not_count():
    values = iter([1.0, 1.0, 1.0, 90.0, 2.0, 3.0, 2.0])
    assert measure({"a": lambda: next(values)}, FakeClock(), 5)["a"].ms == 2.0


@given(st.floats(1e-5, 1e4))
def test_short_runs_are_called_more_often_in_a_row(ms):
    clock = FakeClock()
    measure({"a": constant(ms)}, clock, 1)
    calls = clock.asked[-1][1]
    assert 2 <= calls <= 64
    assert calls in (2, 64) or 4.0 <= calls * ms < 4.0 + ms


def test_progress_is_told_after_each_repetition():
    told = []
    measure({"a": constant(1.0)}, FakeClock(), 4, told.append)
    assert [found["a"].ms for found in told] == [1.0] * 4
