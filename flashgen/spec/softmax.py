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

_FUNCTION = "softmax: none weighs each key by its score alone: write score: {} there"
_INSTEAD = {
    "sigmoid": _FUNCTION.format("sigmoid(s)"),
    **dict.fromkeys(("relu", "relu2", "squared_relu"), _FUNCTION.format("max(s, 0.0) or max(s, 0.0) ** 2")),
    **dict.fromkeys(("linear", "identity", "retention"), _FUNCTION.format("s")),
    **dict.fromkeys(("softmax1", "off_by_1", "quiet"), "write off_by_one"),
    **dict.fromkeys(("sinks", "learned_sinks"), "write {sink: sinks[h]}, and declare the tensor"),
    **dict.fromkeys(
        ("entmax", "alpha_entmax", "sparsemax", "topk", "top_k", "gumbel"),
        "its weights have no running sum, and want their scores in memory; f(s) / sum f(s) is the softmax of score: log(f(s))",
    ),
    **dict.fromkeys(
        ("clip", "clipped", "normalize", "normalized", "renormalized"),
        "a weight is known after a row's last key: take two calls, outputs: [o, lse], and then softmax: none with that lse as a tensor",
    ),
}


def instead(word: str) -> str:
    """The advice for a softmax of another name; empty where there is none.

    >>> instead("sigmoid")
    'softmax: none weighs each key by its score alone: write score: sigmoid(s) there'
    """
    return _INSTEAD.get(word, "")
