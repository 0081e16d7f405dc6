"""Standard attention's gradients in a dtype: what a kernel's errors are measured against."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashgen.expr.meaning.definition import meaning
from flashgen.expr.meaning.embedding_backward import before_embedding
from flashgen.expr.meaning.gradient import derivatives
from flashgen.expr.meaning.reference import Rows, rows_of
from flashgen.expr.meaning.reference_backward import UNKNOWN, Flow, Sums, through_output
from flashgen.interpret import Given
from flashgen.spec import Spec

Array = NDArray[Any]

UNITS = 2.0**-20  # that a float32 sum may err, of the sizes of its terms: rounded weights, and the order of adding


def standard_backward(spec: Spec, given: Given, values: Mapping[str, Any]) -> dict[str, Array]:
    """dq, dk, dv and the gradients of tensors and params by name, of S and P as wholes: sums in float32; p, ds and what comes out are
    rounded to the dtype of the spec, as o is.

    >>> standard_backward(spec, Given(q=q, k=k, v=v, o=o, do=do, lse=lse), {})["dq"]
    """
    dtype, order = spec.element.numpy, spec.order
    q, k, v, o, do = (_float32(order.expanded(getattr(given, x)).transpose(order.to_heads_first)) for x in ("q", "k", "v", "o", "do"))
    found = {f"d{x}": np.zeros(array.shape, np.float32) for x, array in (("q", q), ("k", k), ("v", v))}
    slopes, sums = derivatives(spec), Sums(spec, values)
    numbers = [None if x is None else order.expanded(x) for x in (given.lse, given.dlse)]
    for rows in map(_clean, rows_of(spec, q, k, v, values)):
        at, keys = rows.place.rows, rows.place.keys
        of_o = _float32(through_output(slopes, rows, (do[at], o[at]), sums).astype(dtype))
        flow = _flow(rows, (of_o, o[at]), *(None if x is None else x[at] for x in numbers))
        flow = replace(flow, score=_float32(flow.score.astype(dtype)))
        sums.add_sink(slopes, rows, flow)
        if rows.k.size:
            ds = np.where(flow.score == 0, 0, flow.score * _float32(meaning(slopes.s, rows.known)))
            sums.add_score(slopes, rows, flow, ds)
            p, ds = (_float32(x.astype(dtype)) for x in (flow.p, ds))
            found["dq"][at] = np.float32(rows.scale) * (ds @ _float32(rows.k))
            found["dk"][keys] += np.float32(rows.scale) * (ds.T @ _float32(rows.q))
            found["dv"][keys] += p.T @ of_o
    rounded = {name: _float32(x.astype(dtype)) if name[1:] in spec.embedded else x for name, x in found.items()}
    before_embedding(spec, {"q": q, "k": k}, rounded, values, sums.add_learned)
    return {name: order.given(x.astype(dtype).transpose(order.from_heads_first)) for name, x in rounded.items()} | sums.found


def _float32(x: Array) -> Array:
    return x.astype(np.float32)


def _clean(rows: Rows) -> Rows:
    """The rows with zeros in place of keys that none of them sees, which may be anything."""
    seen = np.asarray(rows.seen.any(0))[:, None]
    return replace(rows, k=np.where(seen, rows.k, 0), v=np.where(seen, rows.v, 0))


@np.errstate(all="ignore")
def _flow(rows: Rows, of_rows: tuple[Array, Array], lse: Array | None, dlse: Array | None) -> Flow:
    """The gradients of some rows, of which do and o are given; their p comes from lse, None: there is no softmax."""
    do, o = of_rows
    of_values, sink = do @ _float32(rows.v).T, np.zeros(len(do))
    weight = np.float32(1) if rows.weight is None else _float32(rows.weight)
    dp = weight * of_values
    p, score = _float32(rows.score), dp
    if lse is not None:
        delta, base = (do * o).sum(-1) - (np.float32(0) if dlse is None else dlse), np.where(lse == -np.inf, 0, lse)
        known = ~(np.abs(lse) >= UNKNOWN)
        p = np.exp(_float32(np.where(rows.seen, rows.score, -np.inf)) - base[:, None])
        p = np.where(known[:, None], p, 0)
        score = p * (dp - delta[:, None])
        sink = np.where(~known, 0, -np.exp(np.float32(rows.sink) - base) * delta)
    p, score = (np.where(rows.seen, x, 0) for x in (p, score))
    counted, of_weight = (np.where(p == 0, 0, p * x) for x in (weight, of_values))
    return Flow(do=do, p=counted, score=score, weight=of_weight, sink=sink)
