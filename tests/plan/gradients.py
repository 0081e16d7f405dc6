"""Gradients beside the float64 reference: at most three times the error of a standard backward in the same dtype, and a bit."""

import numpy as np

from flashgen.emulate import Given
from flashgen.expr.meaning.definition import meaning
from flashgen.expr.meaning.gradient import derivatives
from flashgen.expr.meaning.reference import reference, rows_of
from flashgen.expr.meaning.reference_backward import backward
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
    """The gradients of attention at once: sums in float32; p, ds and what comes out rounded to the dtype of the spec."""
    dtype, order = spec.element.numpy, spec.order
    q, k, v, o, do = (getattr(given, x).transpose(order.to_heads_first).astype(np.float32) for x in ("q", "k", "v", "o", "do"))
    dlse = np.zeros(q.shape[:-1], np.float32) if given.dlse is None else given.dlse
    dq, dk, dv = (np.zeros(x.shape, np.float32) for x in (q, k, v))
    slope = derivatives(spec).s
    for rows in rows_of(spec, q, k, v, values):
        b, hk = rows.known["b"], rows.known["hk"]
        if not rows.k.size:
            continue
        with np.errstate(all="ignore"):
            mine = do[rows.at]
            dp = mine @ np.float32(rows.v).T
            p, ds = np.float32(rows.score), dp
            if spec.softmax.normalized:
                lse = given.lse[rows.at][:, None]
                p = np.exp(np.float32(np.where(rows.seen, rows.score, -np.inf)) - np.where(lse == -np.inf, 0, lse))
                ds = p * (dp - ((mine * o[rows.at]).sum(-1) - dlse[rows.at])[:, None])
            p, ds = (np.where(rows.seen, x, 0).astype(np.float32) for x in (p, ds * np.float32(meaning(slope, rows.known))))
        p, ds = (x.astype(dtype).astype(np.float32) for x in (p, ds))
        dq[rows.at] = np.float32(rows.scale) * (ds @ np.float32(rows.k))
        dk[b, hk] += np.float32(rows.scale) * (ds.T @ np.float32(rows.q))
        dv[b, hk] += p.T @ mine
    return {name: x.astype(dtype).transpose(order.from_heads_first) for name, x in (("dq", dq), ("dk", dk), ("dv", dv))}


def judge(spec, found, given, **values):
    """The error rule of each gradient."""
    true = backward(spec, given.q, given.k, given.v, given.do, given.dlse, **values)
    plain = standard(spec, given, **values)
    for name in ("dq", "dk", "dv"):
        right = getattr(true, name[1:])
        assert found[name].dtype == spec.element.numpy
        assert found[name].shape == right.shape
        assert np.isfinite(np.float64(found[name])).all(), name
        off, usual = (np.abs(np.float64(x) - right).max(initial=0) for x in (found[name], plain[name]))
        assert off <= 3 * usual + SLACK[spec.dtype] * max(1, np.abs(right).max(initial=0)), (name, off, usual)
