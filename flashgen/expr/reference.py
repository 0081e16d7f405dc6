"""Attention as its definition says, in float64, through sympy: it shares the spec's expressions with a kernel, not the lowering."""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flashgen.expr.lower import read
from flashgen.expr.nodes import Const

if TYPE_CHECKING:
    from flashgen.spec import Spec

Array = NDArray[Any]
ELEMENTS = 1 << 21  # of a chunk of scores

NAMES = ("s", "b", "h", "hk", "q_idx", "kv_idx", "q_len", "kv_len")


def reference(spec: "Spec", q: Array, k: Array, v: Array, **values: Any) -> tuple[Array, Array]:
    """Outputs o, of the layout of q, and lse [B, Hq, Sq], natural logarithm; both float64.

    >>> from flashgen.spec import Spec
    >>> q = k = v = np.ones((1, 3, 1, 8), np.float32)
    >>> o, lse = reference(Spec(head_dim=8, dtype="float32", mask="causal"), q, k, v)
    >>> o.shape, (np.exp(lse - 8**0.5)).round(9).tolist()
    ((1, 3, 1, 8), [[[1.0, 2.0, 3.0]]])

    q: [B, Sq, Hq, Dqk], k: [B, Sk, Hk, Dqk], v: [B, Sk, Hk, Dv]; with layout bhsd, axes 1 and 2 swapped. `values`: the params that
    differ from their defaults, and every tensor. A row that sees no key, or only scores of -inf, has o = 0 and lse = -inf (or the sink).
    What a row does not see never matters; an infinite or undefined score that it sees does, as in the formula.
    """
    q, k, v = (_bhsd(np.asarray(x), spec.layout) for x in (q, k, v))
    o, lse = np.zeros((*q.shape[:-1], v.shape[-1])), np.zeros(q.shape[:-1])
    for at, score, seen, vectors, sink in _rows(spec, q, k, v, values):
        o[at], lse[at] = attend(score, seen, vectors, sink) if spec.softmax.normalized else weigh(score, seen, vectors)
    return _bhsd(o, spec.layout), lse


def row_maximum(spec: "Spec", q: Array, k: Array, v: Array, **values: Any) -> Array:
    """The greatest score that each row sees, [B, Hq, Sq] float64; -inf without any. NaN counts as none. Arguments as of `reference`."""
    q, k, v = (_bhsd(np.asarray(x), spec.layout) for x in (q, k, v))
    top = np.zeros(q.shape[:-1])
    for at, score, seen, _, _ in _rows(spec, q, k, v, values):
        top[at] = np.fmax.reduce(np.where(seen, score, -np.inf), axis=-1, initial=-np.inf)
    return top


def _rows(spec: "Spec", q: Array, k: Array, v: Array, values: dict[str, Any]) -> Iterator[tuple[Any, Array, Array, Array, float]]:
    """Query rows some at a time: where they are, their scores, which keys they see, the values, the sink."""
    given = {p.name: p.default for p in spec.params} | values
    score, mask, scale, sink = compiled(spec)
    names = [p.name for p in spec.params]
    tensors = [np.asarray(given[t.name]) for t in spec.tensors]
    (batch, heads, q_len, _), (kv_heads, kv_len) = q.shape, k.shape[1:3]
    group = heads // kv_heads if kv_heads else 1
    params = [given[name] for name in names]
    factor = float(scale(*[0] * len(NAMES), *params, *tensors))
    rows = max(1, ELEMENTS // max(1, kv_len))
    kv_idx = np.arange(kv_len)[None, :]
    with np.errstate(all="ignore"):
        for b, h, begin in np.ndindex(batch, heads, -(-q_len // rows)):
            logit = float(sink(0.0, b, h, h // group, 0, 0, q_len, kv_len, *params, *tensors))
            part = slice(begin * rows, (begin + 1) * rows)
            keys, vectors = (np.asarray(x[b, h // group], np.float64) for x in (k, v))
            s = np.asarray(q[b, h, part], np.float64) @ keys.T * factor
            q_idx = np.arange(q_len)[part, None]
            place = (b, h, h // group, q_idx, kv_idx, q_len, kv_len, *params, *tensors)
            seen, x = (np.broadcast_to(f(s, *place), s.shape) if kv_len else s for f in (mask, score))  # no key, no tensor to read
            yield (b, h, part), x, seen.astype(bool), vectors, logit


def attend(score: Array, seen: Array, v: Array, sink: float) -> tuple[Array, Array]:
    """Softmax over the keys seen and the sink, times v: o [rows, Dv], lse [rows]."""
    x = np.where(seen, score, -np.inf)
    top = x.max(-1, keepdims=True, initial=sink)
    empty = top == -np.inf
    base = np.where(empty, 0.0, top)
    p = np.where(seen & ~empty, np.exp(x - base), 0.0)
    total = p.sum(-1, keepdims=True) + np.exp(sink - base)
    lse = np.where(empty, -np.inf, top + np.log(total))[:, 0]
    p = p / np.where(empty, 1.0, total)
    return _product(p, seen & ~empty, v), lse


def weigh(score: Array, seen: Array, v: Array) -> tuple[Array, Array]:
    """The scores of the keys seen, times v: o [rows, Dv]; the log of what it is divided by, 0 [rows]."""
    return _product(np.where(seen, score, 0.0), seen, v), np.zeros(len(score))


def _product(p: Array, seen: Array, v: Array) -> Array:
    finite = np.isfinite(v)
    o = p @ np.where(finite, v, 0.0)
    for key in np.flatnonzero(~finite.all(-1)):  # an unseen vector never matters, whatever it holds
        o += np.where(seen[:, [key]] & ~finite[key], p[:, [key]] * v[key], 0.0)
    return o


def _bhsd(x: Array, layout: str) -> Array:
    return x if layout == "bhsd" else x.swapaxes(1, 2)


@lru_cache(maxsize=64)
def compiled(spec: "Spec") -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """Score, mask, scale and sink as functions of NAMES, then the params, then the tensors, of the spec."""
    from flashgen.expr.symbolic import to_numpy

    parsed = read(spec)
    names = [*NAMES, *(p.name for p in spec.params), *(t.name for t in spec.tensors)]
    sink = Const(-np.inf, "float") if parsed.sink is None else parsed.sink
    return to_numpy(parsed.score, names), to_numpy(parsed.mask, names), to_numpy(parsed.scale, names), to_numpy(sink, names)
