"""Bounds of what float32 can know: outputs may lie so far from the reference where scores are large.

A score is known to a few units of the largest of the terms that it is a sum of, however they are bracketed: 1e9 - 1e9 + s says little of s.
A weight is then known up to a factor, and o lies between bounds. They are o itself where scores are ordinary.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flashgen.expr.language.bound import UNITS, Term
from flashgen.expr.language.deciding import approximate
from flashgen.expr.language.functions import row
from flashgen.expr.language.nodes import Call, Name, Node, Summation
from flashgen.expr.language.read import read
from flashgen.expr.meaning.definition import meaning
from flashgen.expr.meaning.embedding import doubt
from flashgen.expr.meaning.reference import Rows, exactly, leaving, rows_of, weigh, whole
from flashgen.expr.meaning.sequences import heads_first
from flashgen.spec.outputs import OUTPUTS, Exact

if TYPE_CHECKING:
    from flashgen.spec import Spec

Array = NDArray[Any]
Between = tuple[Array, Array]  # low, high

ORDINARY = 2.0**-12  # a score known better than this is taken as known: what else it costs is in the error rule
UNKNOWN = 2.0**120  # terms of which nothing is known
BETWEEN = 16  # parts between two bounds of o, at whose ends it is looked at
NEGLIGIBLE = 40.0  # a key so far below the greatest score weighs nothing


def bounds(spec: "Spec", q: Array, k: Array, v: Array, **values: Any) -> dict[str, Between]:
    """The bounds of every output that a call may have, by name, float64; arguments as of `reference`.

    >>> from flashgen.spec import Spec
    >>> q = k = v = np.float32([[[[1]], [[2]]]])
    >>> found = bounds(Spec(head_dim=1, dtype="float32", score="s + 1e9 * kv_idx", scale=1), q, k, v)
    >>> [x[0, 0].tolist() for x in found["max"]]
    [[999999525.1628408, 999999527.1628399], [1000000478.8371592, 1000000480.8371601]]
    """
    q, k, v = heads_first(spec, q, k, v, values)
    shapes = {name: (2, *q.shape[:-1], v.shape[-1]) if row.like_o else (2, *q.shape[:-1]) for name, row in OUTPUTS.items()}
    empty = {name: OUTPUTS[name].empty if spec.softmax.normalized else 0.0 for name in shapes}  # of rows that no sequence has
    found = {name: np.full(shape, empty[name]) for name, shape in shapes.items()}
    for rows in rows_of(spec, q, k, v, values):
        unknown, sink = _unknown(spec, rows, *_doubts(spec, rows, q, k))
        of_rows = _of_softmax(rows, unknown, sink) if spec.softmax.normalized else _of_scores(rows, unknown)
        of_rows |= {"o": _leaving(spec, rows, of_rows["o"]), "o_raw": of_rows["o"]}
        for name, between in of_rows.items():
            found[name][slice(None), *rows.at] = between
    return {name: (whole(name, low, spec), whole(name, high, spec)) for name, (low, high) in found.items()}


def distances(found: Array, between: Between) -> Array:
    """The distance of each element from its bounds, float64; infinite where one of the two alone is NaN or infinite."""
    low, high = between
    x = np.asarray(found).astype(np.float64)
    with np.errstate(invalid="ignore"):
        off = np.maximum(np.maximum(low - x, x - high), 0)
        off = np.where(((low <= x) & (x <= high)) | (np.isnan(x) & np.isnan(low)), 0, off)
    return np.where(np.isnan(off), np.inf, off)


def distance(found: Array, between: Between) -> float:
    """The greatest distance of an array from its bounds; infinite where one of them alone is NaN or infinite."""
    return float(distances(found, between).max(initial=0))


def largest(between: Between) -> float:
    """The greatest finite magnitude of bounds."""
    return max(float(np.abs(x[np.isfinite(x)]).max(initial=0)) for x in between)


def _leaving(spec: "Spec", rows: Rows, o: Between) -> Between:
    """Bounds of what o becomes before it is written, by what it does to numbers between those of o."""
    low, high = o
    if np.array_equal(low, high, equal_nan=True):
        return (same := leaving(spec, rows, low)), same
    with np.errstate(all="ignore"):
        found = [leaving(spec, rows, np.where(low == high, low, low + (high - low) * i / BETWEEN)) for i in range(BETWEEN + 1)]
    return np.minimum.reduce(found), np.maximum.reduce(found)


def _around(x: Array, off: Array) -> tuple[Array, Array]:
    return x - off, x + off


def _doubts(spec: "Spec", rows: Rows, q: Array, k: Array) -> tuple[Array, Array]:
    """The distance of each element of the rows of q and of k from what it may be as well, as a norm or a rotary embedding is rounded."""
    place, known = rows.place, rows.known
    of_q = doubt(spec, "q", q[place.rows].astype(np.float64), known["q_idx"][:, 0], known)
    return of_q, doubt(spec, "k", k[place.keys].astype(np.float64), known["kv_idx"][0], known)


def _unknown(spec: "Spec", rows: Rows, of_q: Array, of_k: Array) -> tuple[Array, float]:
    """The error that each score may have, [rows, keys], and that of the sink; 0 where that is ordinary. `of_q`, `of_k`: of elements."""
    parsed, shape = read(spec), rows.score.shape
    with np.errstate(all="ignore"):
        q, k = np.abs(rows.q), np.abs(rows.k)
        s = q @ k.T + (of_q @ k.T + q @ of_k.T if spec.embedded else 0) / UNITS
        terms = _Terms(rows.known, s * abs(rows.scale))
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
            case Summation():
                return self.sum(node.unrolled, value)
            case Call(op, args) if (found := row(op)) and not (found.decides and not approximate(node)):
                return found.terms(value, *(Term(meaning(x, self.values), self(x)) for x in args))
        return np.abs(value)


def _of_scores(rows: Rows, unknown: Array) -> dict[str, Between]:
    """Bounds of o [rows, Dv] where the scores are the weights, and of the greatest of them [rows]."""
    size = None if rows.weight is None else np.abs(rows.weight)
    middle, off = weigh(rows.score, rows.seen, rows.v, rows.weight)[0], weigh(unknown, rows.seen, np.abs(rows.v), size)[0]
    least, most = (exactly(x, rows.seen, rows.v[:, :0], -np.inf) for x in _around(rows.score, unknown))
    return {"o": _around(middle, off), "max": (OUTPUTS["max"].reference(least), OUTPUTS["max"].reference(most))}


def _of_softmax(rows: Rows, unknown: Array, sink: float) -> dict[str, Between]:
    """Bounds of every output of some rows."""
    exact = exactly(rows.score, rows.seen, rows.v, rows.sink, rows.weight)
    if not (unknown.any() or sink):
        known = {name: output.reference(exact) for name, output in OUTPUTS.items()}
        return {name: (x, x) for name, x in known.items()}
    least, most = (exactly(rows.score + sign * unknown, rows.seen, rows.v[:, :0], rows.sink + sign * sink) for sign in (-1, 1))
    p = _share(least.score, most.lse), np.minimum(_share(most.score, least.lse), 1.0)
    found = {name: row.between(*p) if row.between else (row.reference(least), row.reference(most)) for name, row in OUTPUTS.items()}
    return found | {"o": _of_output(rows, unknown, sink, exact)}


@np.errstate(all="ignore")
def _share(score: Array, lse: Array) -> Array:
    """The weight of each key [rows, keys]: 0 in a row that sees none."""
    lse = lse[:, None]
    return np.where(lse == -np.inf, 0.0, np.exp(score - lse))


def _of_output(rows: Rows, unknown: Array, sink: float, exact: Exact) -> Between:
    """Bounds of o [rows, Dv]. The sink is one more key, whose v is 0."""
    o, lse = exact.o, exact.lse
    score = np.hstack([exact.score, np.full((len(o), 1), rows.sink)])
    off, v = np.hstack([unknown, np.full((len(o), 1), sink)]), np.vstack([rows.v, np.zeros((1, rows.v.shape[1]))])
    low, high = o.copy(), o.copy()
    for i in np.flatnonzero(np.isfinite(lse) & (off * (score > -np.inf)).any(-1)):
        near = score[i] + off[i] >= (score[i] - off[i]).max() - NEGLIGIBLE
        counted = v if rows.weight is None else v * np.append(rows.weight[i], 1.0)[:, None]
        low[i], high[i] = _weighted(score[i, near], off[i, near], counted[near], o[i], lse[i])
    return low, high


@np.errstate(all="ignore")
def _weighted(score: Array, off: Array, v: Array, o: Array, lse: float) -> tuple[Array, Array]:
    """Bounds of a mean of v [keys, Dv], whose weights exp(score) are known up to exp(+-off): inside of v, and near o if off is small."""
    p = score - lse
    reach = (np.exp(p + off) - np.exp(p)) @ (np.abs(v) + np.abs(o)) / np.exp(p - off).sum()
    reach = np.where(np.isnan(reach), np.inf, reach)
    return np.maximum(o - reach, np.minimum(v.min(0), o)), np.minimum(o + reach, np.maximum(v.max(0), o))
