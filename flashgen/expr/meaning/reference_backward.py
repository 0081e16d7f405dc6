"""The gradients of attention as its definition says, in float64, by the chain rule along the steps of flashgen.expr.meaning.reference."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from flashgen.dtypes import ATTENTION_DTYPES
from flashgen.expr.language.nodes import V_IDX, Name, Node
from flashgen.expr.meaning.definition import clamped, meaning
from flashgen.expr.meaning.embedding_backward import before_embedding
from flashgen.expr.meaning.gradient import ONE, Derivatives, Variable, derivatives
from flashgen.expr.meaning.reference import Array, Rows, attended, output_heads_first, rows_of, weighted
from flashgen.expr.meaning.sequences import heads_first

if TYPE_CHECKING:
    from flashgen.spec import Spec

UNKNOWN = 2.0**24  # from this magnitude of lse on, float32 does not tell what a score is less it: such a row has no part in any gradient


@dataclass(frozen=True)
class Gradients:
    """The gradients of a loss, float64: of q, k and v, each of its layout; of every tensor of floats, and of every float param, by name."""

    q: Array
    k: Array
    v: Array
    values: Mapping[str, Array]
    sizes: Mapping[str, Array]  # of the terms that each of `values` sums up: float32 knows the sum to some units of that


@np.errstate(all="ignore")
def backward(spec: "Spec", q: Array, k: Array, v: Array, do: Array, dlse: Array | None = None, **values: Any) -> Gradients:
    """The gradients of a loss of which o has the gradient `do`, of the layout of q, and lse has `dlse` [B, Hq, Sq], or 0.

    >>> from flashgen.spec import Spec
    >>> x = np.ones((1, 2, 1, 8), np.float32)
    >>> found = backward(Spec(head_dim=8, dtype="float32", mask="causal"), x, x, x, do=x)
    >>> found.v[0, :, 0, 0].round(9).tolist()
    [1.5, 0.5]

    Other arguments as of `reference`. What a row does not see gets no gradient from it, whatever it holds, nor does a key of weight 0: a
    row without keys gives 0, and so does one whose lse is UNKNOWN or beyond. An axis of 1 that is read as if it were repeated has the sum.
    """
    slopes = derivatives(spec)
    (q, k, v), do = heads_first(spec, q, k, v, values), output_heads_first(do, spec)
    dlse = np.zeros(q.shape[:-1]) if dlse is None else spec.order.expanded(np.asarray(dlse, np.float64))
    sums = Sums(spec, values)
    dq, dk, dv = (np.zeros(x.shape) for x in (q, k, v))
    for rows in rows_of(spec, q, k, v, values):
        o, lse = attended(spec, rows)
        of_o = through_output(slopes, rows, (do[rows.at].astype(np.float64), o), sums)
        flow = _flow(spec, rows, (of_o, o), lse, dlse[rows.at])
        sums.add_sink(slopes, rows, flow)
        if rows.k.size:
            ds = _times(flow.score, meaning(slopes.s, rows.known))
            dq[rows.at] = rows.scale * weighted(ds, ds != 0, rows.k)
            dk[rows.place.keys] += rows.scale * weighted(ds.T, ds.T != 0, rows.q)
            dv[rows.place.keys] += weighted(flow.p.T, flow.p.T != 0, flow.do)
            sums.add_score(slopes, rows, flow, ds)
    before_embedding(spec, {"q": q, "k": k}, {"dq": dq, "dk": dk}, values, sums.add_learned)
    dq, dk, dv = (spec.order.given(x.transpose(spec.order.from_heads_first)) for x in (dq, dk, dv))
    return Gradients(q=dq, k=dk, v=dv, values=sums.found, sizes=sums.sizes)


@dataclass(frozen=True, kw_only=True)
class Flow:
    """The gradients of some rows: of o, of their scores and of `weight` [rows, keys], and of the sink [rows]; p: what keys count for."""

    do: Array
    p: Array
    score: Array
    weight: Array
    sink: Array


def through_output(slopes: Derivatives, rows: Rows, of_rows: tuple[Array, Array], sums: "Sums") -> Array:
    """The gradient of what o was before `output`, of some rows; of what it reads the sums are added to. `of_rows`: do and that o."""
    do, o = of_rows
    known = {**rows.known, "o": o, V_IDX: np.arange(o.shape[1])[None, :]}
    sums.add_output(slopes, replace(rows, known=known), do)
    return do if slopes.o == ONE else _times(do, meaning(slopes.o, known))


def _flow(spec: "Spec", rows: Rows, of_rows: tuple[Array, Array], lse: Array, dlse: Array) -> Flow:
    do, o = of_rows
    of_values = do @ rows.v.T
    weight = np.ones(rows.score.shape) if rows.weight is None else rows.weight
    dp = weight * of_values
    if not spec.softmax.normalized:
        p = np.where(rows.seen, rows.score, 0.0)
        score, none = np.where(rows.seen, dp, 0.0), np.zeros(len(do))
        return Flow(do=do, p=_times(p, weight), score=score, weight=_times(p, of_values), sink=none)
    known = ~(np.abs(lse) >= UNKNOWN)
    p = np.where(rows.seen & (rows.score != -np.inf) & known[:, None], np.exp(rows.score - lse[:, None]), 0.0)
    delta = (do * o).sum(-1) - dlse
    sink = np.where(known & (rows.sink != -np.inf), -np.exp(rows.sink - lse) * delta, 0.0)
    return Flow(do=do, p=_times(p, weight), score=_times(p, dp - delta[:, None]), weight=_times(p, of_values), sink=sink)


def _times(gradient: Array, slope: Array) -> Array:
    """The chain rule; no gradient stays none, however steep it goes on."""
    return np.where(gradient == 0, 0.0, gradient * slope)


class Sums:
    """The gradients of tensors and params, summed over all that reads them."""

    def __init__(self, spec: "Spec", values: Mapping[str, Any]):
        self.spec = spec
        self.found = {t.name: np.zeros(np.shape(values[t.name])) for t in spec.tensors if t.dtype in ATTENTION_DTYPES}
        self.found |= {p.name: np.zeros(()) for p in spec.params if p.type == "float"}
        self.sizes = {name: np.zeros(x.shape) for name, x in self.found.items()}

    def add_score(self, slopes: Derivatives, rows: Rows, flow: Flow, ds: Array) -> None:
        """Adds the gradients that come through the scores, the scale and the weights of keys of these rows."""
        self._add(slopes.score, flow.score, rows)
        self._add(slopes.weight, flow.weight, rows)
        self._add(slopes.scale, _times(ds, rows.q @ rows.k.T), rows)

    def add_sink(self, slopes: Derivatives, rows: Rows, flow: Flow) -> None:
        """Adds the gradients that come through the sink of these rows."""
        self._add(slopes.sink, flow.sink, rows)

    def add_output(self, slopes: Derivatives, rows: Rows, gradient: Array) -> None:
        """Adds the gradients that come through the output of these rows, whose o and v_idx are known."""
        self._add(slopes.output, gradient, rows)

    def add_learned(self, name: str, terms: Array) -> None:
        """Adds what each row makes of the gradient of a norm's learned columns, [..., D]."""
        if name in self.found:
            self.found[name] += terms.sum(tuple(range(terms.ndim - 1)))
            self.sizes[name] += np.abs(terms).sum(tuple(range(terms.ndim - 1)))

    def _add(self, slopes: Mapping[Variable, Node], gradient: Array, rows: Rows) -> None:
        for by, slope in slopes.items():
            found = _times(gradient, meaning(slope, rows.known))
            if isinstance(by, Name):
                self.found[by.name] += found.sum()
                self.sizes[by.name] += np.abs(found).sum()
            else:
                at = tuple(np.broadcast_to(i, found.shape) for i in clamped(by, rows.known))
                np.add.at(self._of(by.tensor, self.found, rows), at, found)
                np.add.at(self._of(by.tensor, self.sizes, rows), at, np.abs(found))

    def _of(self, name: str, sums: Mapping[str, Array], rows: Rows) -> Array:
        """The sum of a tensor's gradient that the sequence of these rows adds to."""
        tensor = next(tensor for tensor in self.spec.tensors if tensor.name == name)
        return rows.place.sequence.own(self.spec, tensor, sums[name])
