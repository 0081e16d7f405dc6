"""Gradients beside the float64 reference: at most three times the error of a standard backward in the same dtype, and a bit."""

from dataclasses import replace

import numpy as np

from flashgen.emulate import Given
from flashgen.expr.meaning.definition import meaning
from flashgen.expr.meaning.gradient import derivatives
from flashgen.expr.meaning.reference import reference, rows_of
from flashgen.expr.meaning.reference_backward import _Flow, _Sums, backward
from tests.plan.agreement import SLACK, arrays


def given(spec, batch, heads, kv_heads, q_len, kv_len, *, seed=0, dlse=False, **values):
    """Arrays of a call and what the forward gives for them, by the reference."""
    q, k, v = arrays(spec, batch, heads, kv_heads, q_len, kv_len, seed)
    return completed(spec, q, k, v, seed=seed, dlse=dlse, **values)


def completed(spec, q, k, v, *, seed=0, dlse=False, **values):
    """The same for these q, k, v."""
    random = np.random.default_rng(seed + 1)
    o, lse = reference(spec, q, k, v, **values)
    do = random.standard_normal(o.shape).astype(spec.element.numpy)
    of_lse = random.standard_normal(lse.shape).astype(np.float32) if dlse and spec.softmax.normalized else None
    lse = np.float32(lse) if spec.softmax.normalized else None
    return Given(q=q, k=k, v=v, o=o.astype(spec.element.numpy), do=do, lse=lse, dlse=of_lse)


def standard(spec, given, **values):
    """The gradients of attention at once: sums in float32; p, ds, dq, dk and dv rounded to the dtype of the spec, and so was o."""
    dtype, order = spec.element.numpy, spec.order
    q, k, v, o, do = (getattr(given, x).transpose(order.to_heads_first).astype(np.float32) for x in ("q", "k", "v", "o", "do"))
    dlse = np.zeros(q.shape[:-1], np.float32) if given.dlse is None else given.dlse
    found, slopes, sums = (
        {f"d{x}": np.zeros(array.shape, np.float32) for x, array in (("q", q), ("k", k), ("v", v))},
        derivatives(spec),
        _Sums(spec, values),
    )
    for rows in map(_clean, rows_of(spec, q, k, v, values)):
        at, keys = rows.at, (rows.known["b"], rows.known["hk"])
        flow = _flow_of(spec, rows, do[at], o[at], None if given.lse is None else given.lse[at], dlse[at])
        sums.add_sink(slopes, rows, flow)
        if rows.k.size:
            ds = np.where(flow.score == 0, 0, flow.score * np.float32(meaning(slopes.s, rows.known)))
            sums.add_score(slopes, rows, flow, ds)
            p, ds = (x.astype(dtype).astype(np.float32) for x in (flow.p, ds))
            found["dq"][at] = np.float32(rows.scale) * (ds @ np.float32(rows.k))
            found["dk"][keys] += np.float32(rows.scale) * (ds.T @ np.float32(rows.q))
            found["dv"][keys] += p.T @ do[at]
    return {name: x.astype(dtype).transpose(order.from_heads_first) for name, x in found.items()} | sums.found


def _clean(rows):
    """The rows with zeros in place of keys that none of them sees, which may be anything."""
    return replace(rows, **{x: np.where(rows.seen.any(0)[:, None], getattr(rows, x), 0) for x in ("k", "v")})


@np.errstate(all="ignore")
def _flow_of(spec, rows, do, o, lse, dlse):
    dp, sink = do @ np.float32(rows.v).T, np.zeros(len(do))
    p, score = np.float32(rows.score), dp
    if spec.softmax.normalized:
        delta, base = (do * o).sum(-1) - dlse, np.where(lse == -np.inf, 0, lse)
        p = np.exp(np.float32(np.where(rows.seen, rows.score, -np.inf)) - base[:, None])
        score = p * (dp - delta[:, None])
        sink = np.where(lse == -np.inf, 0, -np.exp(np.float32(rows.sink) - base) * delta)
    return _Flow(do=do, p=np.where(rows.seen, p, 0), score=np.where(rows.seen, score, 0), sink=sink)


def judge(spec, found, given, **values):
    """The error rule of each gradient."""
    true = backward(spec, given.q, given.k, given.v, given.do, given.dlse, **values)
    plain = standard(spec, given, **values)
    asked = {one.name: true.values[one.name] for one in spec.with_grad}
    for name, right in {"dq": true.q, "dk": true.k, "dv": true.v, **asked}.items():
        assert found[name].dtype == (np.float32 if name in asked else spec.element.numpy)
        assert found[name].shape == right.shape
        assert np.isfinite(np.float64(found[name])).all(), name
        off, usual = (np.abs(np.float64(x) - right).max(initial=0) for x in (found[name], plain[name]))
        assert off <= 3 * usual + SLACK[spec.dtype] * max(1, np.abs(right).max(initial=0)), (name, off, usual)
