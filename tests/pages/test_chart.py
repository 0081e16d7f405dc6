"""Charts: points lie inside the plot, in order, with ticks around them."""

from hypothesis import given
from hypothesis import strategies as st

from flashgen.pages.chart import chart, decades, linear

NUMBERS = st.floats(1e-6, 1e12)
POINTS = st.lists(st.tuples(st.integers(1, 1 << 20), NUMBERS), min_size=1, max_size=8)


@given(st.dictionaries(st.sampled_from(["a", "b", "<c>"]), POINTS, min_size=1), st.booleans(), st.booleans())
def test_points_lie_in_the_plot(lines, log_y, at_lengths):
    xs = sorted({x for points in lines.values() for x, _ in points}) if at_lengths else None
    drawn = chart("", ("x", "y"), lines, xs, log_y)
    left, top, right, bottom = drawn.plot
    for line in drawn.lines:
        assert len(line.marks) == len(lines[line.name])
        for x, y, _ in line.marks:
            assert left <= x <= right
            assert top <= y <= bottom
    for axis, (low, high) in zip(drawn.ticks, ((left, right), (top, bottom)), strict=True):
        assert all(low <= tick.at <= high for tick in axis)


@given(st.lists(NUMBERS, min_size=1))
def test_ticks_are_around_numbers(numbers):
    for ticks in (decades(numbers), linear(numbers)):
        assert ticks == sorted(set(ticks))
        assert ticks[-1] >= max(numbers) * (1 - 1e-6)
    assert decades(numbers)[0] <= min(numbers) * (1 + 1e-6)
    assert len(linear(numbers)) <= 7


def test_larger_is_higher_and_further_right():
    (line,) = chart("", ("x", "y"), {"a": [(1, 1.0), (10, 5.0)]}).lines
    (x0, y0, _), (x1, y1, said) = line.marks
    assert x0 < x1
    assert y0 > y1
    assert said == "a: 5 at 10"
