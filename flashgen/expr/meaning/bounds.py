"""Bounds of what float32 can know: o, lse and the maximum may lie so far from the reference where scores are large.

A score is known to a few units of the largest of the terms that it is a sum of, however they are bracketed: 1e9 - 1e9 + s says little of s.
A weight is then known up to a factor, and o lies between bounds. They are o itself where scores are ordinary.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flashgen.expr.language.bound import UNITS, Term
from flashgen.expr.language.deciding import approximate
from flashgen.expr.language.functions import row
from flashgen.expr.language.nodes import Call, Name, Node
from flashgen.expr.language.read import read
from flashgen.expr.meaning.definition import meaning
from flashgen.expr.meaning.reference import Rows, attend, heads_first, rows_of, weigh

if TYPE_CHECKING:
    from flashgen.spec import Spec

Array = NDArray[Any]
Between = tuple[Array, Array]  # low, high

ORDINARY = 2.0**-12  # a score known better than this is taken as known: what else it costs is in the error rule
UNKNOWN = 2.0**120  # terms of which nothing is known
NEGLIGIBLE = 40.0  # a key so far below the greatest score weighs nothing


@dataclass(frozen=True)
class Bounds:
    """Between what o, lse [B, Hq, Sq] and the greatest score of each row lie, as of `reference`; float64."""

    o: Between
    lse: Between
    top: Between


def bounds(spec: "Spec", q: Array, k: Array, v: Array, **values: Any) -> Bounds:
    """The bounds of a call; arguments as of `reference`.

    >>> from flashgen.spec import Spec
    >>> q = k = v = np.float32([[[[1]], [[2]]]])
    >>> found = bounds(Spec(head_dim=1, dtype="float32", score="s + 1e9 * kv_idx", scale=1), q, k, v)
    >>> [x[0, 0].tolist() for x in found.top]
    [[999999525.1628408, 999999527.1628399], [1000000478.8371592, 1000000480.8371601]]
    """
    q, k, v = (heads_first(x, spec) for x in (q, k, v))
    o = np.zeros((2, *q.shape[:-1], v.shape[-1]))
    lse, top = np.zeros((2, *q.shape[:-1])), np.zeros((2, *q.shape[:-1]))
    for rows in rows_of(spec, q, k, v, values):
        unknown, sink = _unknown(spec, rows)
        at = slice(None), *rows.at
        top[at] = [np.fmax.reduce(np.where(rows.seen, x, -np.inf), axis=-1, initial=-np.inf) for x in _around(rows.score, unknown)]
        if spec.softmax.normalized:
            o[at], lse[at] = _attend(rows, unknown, sink)
        else:
            middle, off = weigh(rows.score, rows.seen, rows.v)[0], weigh(unknown, rows.seen, np.abs(rows.v))[0]
            o[at] = _around(middle, off)
    low, high = (x.transpose(spec.order.from_heads_first) for x in o)
    return Bounds((low, high), (lse[0], lse[1]), (top[0], top[1]))


def apart(found: Array, between: Between) -> float:
    """The greatest distance of an array from its bounds; infinite where one of them alone is NaN or infinite."""
    low, high = between
    x = np.asarray(found).astype(np.float64)
    with np.errstate(invalid="ignore"):
        off = np.maximum(np.maximum(low - x, x - high), 0)
        off = np.where(((low <= x) & (x <= high)) | (np.isnan(x) & np.isnan(low)), 0, off)
    return float(np.where(np.isnan(off), np.inf, off).max(initial=0))


def largest(between: Between) -> float:
    """The greatest finite magnitude of bounds."""
    return max(float(np.abs(x[np.isfinite(x)]).max(initial=0)) for x in between)


def _around(x: Array, off: Array) -> tuple[Array, Array]:
    return x - off, x + off


def _unknown(spec: "Spec", rows: Rows) -> tuple[Array, float]:
    """The error that each score may have, [rows, keys], and that of the sink; 0 where that is ordinary."""
    parsed, shape = read(spec), rows.score.shape
    with np.errstate(all="ignore"):
        terms = _Terms(rows.known, np.abs(rows.q) @ np.abs(rows.k).T * abs(rows.scale))
        of_score, of_sink = terms(parsed.score) if shape[1] else np.zeros(shape), terms(parsed.sink) if parsed.sink else np.zeros(())
    score, sink = (np.where(UNITS * x < ORDINARY, 0.0, UNITS * x) for x in (np.broadcast_to(of_score, shape), of_sink))
    return score, float(sink)


class _Terms:
    """The magnitudes of what a value is the sum of; 0 where it is not finite: nothing rounds that."""

    def __init__(self, values: Mapping[str, Any], s: Array):
        self.values, self.s = values, s

    def __call__(self, node: Node) -> Array:
        value = meaning(node, self.values)
        found = np.nan_to_num(np.maximum(self.sum(node, value), np.abs(value)), nan=UNKNOWN, posinf=UNKNOWN)
        return np.where(np.isfinite(value), found, 0.0)

    def sum(self, node: Node, value: Array) -> Any:
        match node:
            case Name("s"):
                return self.s
            case Call(op, args) if (found := row(op)) and not (found.decides and not approximate(node)):
                return found.terms(value, *(Term(meaning(x, self.values), self(x)) for x in args))
        return np.abs(value)


def _attend(rows: Rows, unknown: Array, sink: float) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Bounds of o [rows, Dv] and lse [rows]. The sink is one more key, whose v is 0."""
    o, lse = attend(rows.score, rows.seen, rows.v, rows.sink)
    if not (unknown.any() or sink):
        return (o, o), (lse, lse)
    ends = tuple(attend(rows.score + sign * unknown, rows.seen, rows.v[:, :0], rows.sink + sign * sink)[1] for sign in (-1, 1))
    score = np.hstack([np.where(rows.seen, rows.score, -np.inf), np.full((len(o), 1), rows.sink)])
    off, v = np.hstack([unknown, np.full((len(o), 1), sink)]), np.vstack([rows.v, np.zeros((1, rows.v.shape[1]))])
    low, high = o.copy(), o.copy()
    for i in np.flatnonzero(np.isfinite(lse) & (off * (score > -np.inf)).any(-1)):
        near = score[i] + off[i] >= (score[i] - off[i]).max() - NEGLIGIBLE
        low[i], high[i] = _weighted(score[i, near], off[i, near], v[near], o[i], lse[i])
    return (low, high), (ends[0], ends[1])


@np.errstate(all="ignore")
def _weighted(score: Array, off: Array, v: Array, o: Array, lse: float) -> tuple[Array, Array]:
    """Bounds of a mean of v [keys, Dv], whose weights exp(score) are known up to exp(+-off): inside of v, and near o if off is small."""
    p = score - lse
    reach = (np.exp(p + off) - np.exp(p)) @ (np.abs(v) + np.abs(o)) / np.exp(p - off).sum()
    reach = np.where(np.isnan(reach), np.inf, reach)
    return np.maximum(o - reach, np.minimum(v.min(0), o)), np.minimum(o + reach, np.maximum(v.max(0), o))
