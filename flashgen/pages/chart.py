"""A chart of lines: where its points, ticks and labels lie, in the units of an SVG picture."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 520, 300
LEFT, RIGHT, TOP, BOTTOM = 84, 30, 14, 46  # beside the plot, for labels
COLORS = 9  # of lines, in templates/pages/style.css
TICKS = 5  # about so many of a linear axis

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Tick:
    """A number beside an axis."""

    at: float
    text: str


@dataclass(frozen=True)
class Line:
    """A line by its points; of one point, a mark alone. `marks`: x, y, and the point in words."""

    name: str
    color: int  # of COLORS
    path: str  # `x,y x,y`, of a polyline
    marks: tuple[tuple[float, float, str], ...]


@dataclass(frozen=True)
class Chart:
    """A chart as a template draws it."""

    title: str
    axes: tuple[str, str]  # what x and y are
    ticks: tuple[tuple[Tick, ...], tuple[Tick, ...]]
    lines: tuple[Line, ...]
    size: tuple[int, int] = (WIDTH, HEIGHT)
    plot: tuple[int, int, int, int] = (LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM)  # left, top, right, bottom


def chart(
    title: str,
    axes: tuple[str, str],
    lines: Mapping[str, Points],
    xs: Sequence[float] | None = None,
    log_y: bool = True,
    text: Callable[[float], str] = lambda y: f"{y:,.4g}",
) -> Chart:
    """A chart of lines, by name. x is logarithmic; `xs`: where it has ticks, by default at powers of ten; `text` says a y in words.

    >>> chart("speed", ("length", "TFLOP/s"), {"a": [(512, 1.0), (1024, 2.0)]}, [512, 1024]).lines[0].path
    '84.0,254.0 490.0,181.8'
    """
    points = [point for found in lines.values() for point in found]
    x_ticks = list(xs) if xs else decades(x for x, _ in points)
    y_ticks = (decades if log_y else linear)(y for _, y in points)
    x_at = _scale(math.log, (*x_ticks, *(x for x, _ in points)), LEFT, WIDTH - RIGHT)
    y_at = _scale(math.log if log_y else float, (*y_ticks, *(y for _, y in points)), HEIGHT - BOTTOM, TOP)
    made = []
    for i, (name, found) in enumerate(lines.items()):
        places = [(x_at(x), y_at(y)) for x, y in found]
        said = [f"{name}: {text(y)} at {x:,.6g}" for x, y in found]
        marks = tuple((x, y, word) for (x, y), word in zip(places, said, strict=True))
        made.append(Line(name, i % COLORS, path=" ".join(f"{x},{y}" for x, y in places), marks=marks))
    ticks = tuple(Tick(x_at(x), f"{x:g}") for x in x_ticks), tuple(Tick(y_at(y), text(y)) for y in y_ticks)
    return Chart(title=title, axes=axes, ticks=ticks, lines=tuple(made))


def decades(numbers: Iterable[float]) -> list[float]:
    """Powers of ten around numbers.

    >>> decades([0.3, 40])
    [0.1, 1.0, 10.0, 100.0]
    """
    found = list(numbers)
    first, last = math.floor(math.log10(min(found))), math.ceil(math.log10(max(found)))
    return [10.0**n for n in range(first, max(last, first + 1) + 1)]


def linear(numbers: Iterable[float]) -> list[float]:
    """Round numbers from 0 up to the largest and just beyond.

    >>> linear([0.5, 730])
    [0.0, 200.0, 400.0, 600.0, 800.0]
    """
    most = max(numbers)
    step = 10.0 ** math.floor(math.log10(most / TICKS))
    step *= next(times for times in (1, 2, 5, 10) if most <= TICKS * times * step)
    return [step * n for n in range(math.ceil(most / step - 1e-9) + 1)]


def _scale(of: Callable[[float], float], numbers: Sequence[float], first: float, last: float) -> Callable[[float], float]:
    """The place of a number between those of the least and the greatest."""
    low, high = of(min(numbers)), of(max(numbers))
    return lambda x: round(first + (last - first) * (of(x) - low) / ((high - low) or 1), 1)
