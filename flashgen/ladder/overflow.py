"""Shows that softmax has to be made safe: exp(12) is beyond float16."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashgen.interpret import interpret
from flashgen.ladder.rungs import RUNGS, Rung
from flashgen.plan import plan
from flashgen.spec import Spec

SCORES = (8.0, 11.0, 11.5, 12.0)  # of the second key; the first key has 0, the third one less

CLOSE = 0.01  # of values up to 2: float16 has three digits


@dataclass(frozen=True)
class Overflow:
    """Attention to three keys with values 0, 1 and 2, the largest score x."""

    score: float
    exponential: float  # exp(x) in float16
    naive: float  # by exponentials in float16, undivided
    exact: float
    safe: dict[str, float]  # by rung

    @property
    def overflows(self) -> bool:
        """True if the naive result is not what float16 arithmetic makes of the right one."""
        return not abs(self.naive - self.exact) < CLOSE


def naive(scores: NDArray[Any], v: NDArray[Any]) -> float:
    """Attention by softmax's definition, all of it in the dtype of the scores.

    >>> naive(np.array([0, 12, 11], np.float16), np.array([0, 1, 2], np.float16))
    nan
    """
    with np.errstate(over="ignore", invalid="ignore"):
        p = np.exp(scores)
        return float((p / p.sum() * v).sum(dtype=scores.dtype))


def overflow() -> list[Overflow]:
    """The overflow of attention by softmax's definition, a line a score."""
    return [_line(x) for x in SCORES]


def _line(x: float) -> Overflow:
    scores, values = np.array([0, x, x - 1], np.float16), np.array([0, 1, 2], np.float16)
    q = np.zeros((1, 1, 1, 16), np.float16)
    q[..., 0] = 1
    k, v = (np.zeros((1, 3, 1, 16), np.float16) for _ in "kv")
    k[0, :, 0, 0], v[0, :, 0, 0] = scores, values
    weights = np.exp(scores.astype(np.float64) - x)
    safe = {rung.name: float(interpret(plan(_spec(rung), "host"), q, k, v)["o"][0, 0, 0, 0]) for rung in RUNGS if rung.schedule}
    with np.errstate(over="ignore"):
        exponential = float(np.exp(np.float16(x)))
    return Overflow(
        score=x,
        exponential=exponential,
        naive=naive(scores, values),
        exact=float(weights @ values.astype(np.float64) / weights.sum()),
        safe=safe,
    )


def _spec(rung: Rung) -> Spec:
    return Spec(**(rung.spec(16, "float16").to_json() | {"scale": 1}))
