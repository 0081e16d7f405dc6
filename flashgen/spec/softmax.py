"""The softmax of a spec: how scores become weights, and the pinned part of its schedule."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """The pinned part of the rescale schedule; None: the planner chooses. `threshold` is in log2 units."""

    passes: int | None = None
    normalize: str | None = None
    rescale: str | None = None
    threshold: float | None = None
    outer: str | None = None
    materialize: bool | None = None


SCHEDULES = {
    "auto": Schedule(),
    "standard": Schedule(materialize=True),
    "three_pass": Schedule(passes=3),
    "two_pass": Schedule(passes=2),
    "one_pass": Schedule(passes=1),
}


@dataclass(frozen=True)
class Softmax:
    """The way from scores to weights: exp(score) over the sum of the row's, with one more term exp(sink) in the sum if there is a sink; or,
    not normalized, the scores themselves."""

    normalized: bool = True
    sink: str | None = None


SOFTMAXES = {"softmax": Softmax(), "off_by_one": Softmax(sink="0"), "none": Softmax(normalized=False)}
