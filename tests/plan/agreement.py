"""The interpreter beside the float64 reference: at most twice the error of plain attention in the same dtype, and a bit."""

import numpy as np

from flashgen.emulate.numbers import differences
from flashgen.expr import evaluate, lower
from flashgen.expr.meaning.bounds import bounds, distance, largest
from flashgen.expr.meaning.embedding import embedded
from flashgen.expr.meaning.lists import list_of, listed
from flashgen.expr.meaning.reference import output_heads_first
from flashgen.expr.meaning.sequences import heads_first, sequences
from flashgen.interpret import interpret
from flashgen.plan.search import plan
from flashgen.spec import Spec

SLACK = {"float32": 1e-5, "float16": 5e-4, "bfloat16": 4e-3}
SCHEDULES = {
    "standard": "standard",
    "three_pass": "three_pass",
    "three_pass_kv_outer": {"passes": 3, "outer": "kv"},
    "two_pass": "two_pass",
    "two_pass_kv_outer": {"passes": 2, "outer": "kv"},
    "one_pass": "one_pass",
    "one_pass_kv_outer": {"outer": "kv"},
    "each_step": {"normalize": "each_step"},
    "each_step_kv_outer": {"normalize": "each_step", "outer": "kv"},
    "lazy": {"rescale": "lazy"},
    "barely_lazy": {"rescale": {"lazy": 0.25}},
    "lazy_kv_outer": {"rescale": "lazy", "outer": "kv"},
}


def arrays(spec, batch, heads, kv_heads, q_len, kv_len, seed=0, amplitude=1.0):
    """q, k, v of the spec's layout and dtype, rounded to it."""
    random = np.random.default_rng(seed)
    sizes = [(heads, q_len, spec.head_dim.qk), (kv_heads, kv_len, spec.head_dim.qk), (kv_heads, kv_len, spec.head_dim.v)]
    shapes = [spec.order.arranged(b=batch, s=s, h=h, d=d) for h, s, d in sizes]
    return [(amplitude * random.standard_normal(shape)).astype(spec.element.numpy) for shape in shapes]


def softmax_of(name):
    return plan(Spec(head_dim=8, dtype="float32", schedule=SCHEDULES[name]), "host").softmax


def run(spec, q, k, v, **values):
    found = interpret(plan(spec, "host"), q, k, v, values)
    return found["o"], found["lse"]


def plain(spec, q, k, v, raw=False, **values):
    """Attention at once, in the dtype of the spec with float32 sums. `raw`: before `output`."""
    q, k, v = heads_first(spec, q, k, v, values)
    o = np.zeros((*q.shape[:-1], v.shape[-1]))
    for each in sequences(spec, (len(q), q.shape[2], k.shape[2]), values):
        if each.q_len and each.kv_len:
            parts = q[[each.at], :, each.rows], k[[each.keys_at], :, each.keys], v[[each.keys_at], :, each.keys]
            o[[each.at], :, each.rows] = of_sequence(spec, each.b, *parts, values | each.read(spec, values), raw)
    return spec.order.given(o.transpose(spec.order.from_heads_first))


def of_sequence(spec, b, q, k, v, values, raw=False):
    """A sequence of arrays [1, H, S, D] that hold one."""
    expressions = lower(spec)
    of_rows = {**values, "b": b, "q_len": q.shape[2], "kv_len": k.shape[2]}
    q, k = (embedded(spec, role, x.astype(np.float32), np.arange(x.shape[2]), of_rows).astype(q.dtype) for role, x in (("q", q), ("k", k)))
    group = q.shape[1] // k.shape[1]
    dtype, k, v = q.dtype, *(np.repeat(x, group, axis=1).astype(np.float32) for x in (k, v))
    _, h, q_idx, kv_idx = np.ogrid[:1, : q.shape[1], : q.shape[2], : k.shape[2]]
    known = {p.name: p.default for p in spec.params} | values
    known |= {"b": b, "h": h, "hk": h // group, "q_idx": q_idx, "kv_idx": kv_idx, "q_len": q.shape[2], "kv_len": k.shape[2]}
    with np.errstate(all="ignore"):
        s = (q.astype(np.float32) @ k.swapaxes(2, 3)) * np.float32(evaluate(expressions.scale, known))
        score, seen = evaluate(expressions.score, known | {"s": s}), np.broadcast_to(evaluate(expressions.mask, known), s.shape)
        if spec.blocks:
            idx = values[spec.blocks.lists]
            own = [list_of(spec.blocks, idx, {"b": b, "h": h, "hk": h // group}) for h in range(q.shape[1])]
            seen = seen & np.stack([listed(spec.blocks, x, q_idx.ravel(), kv_idx.ravel()) for x in own])
        sink = np.float32(-np.inf if expressions.sink is None else evaluate(expressions.sink, known))
        s = np.where(seen, np.float32(score), -np.inf)
        top = np.maximum(s.max(-1, keepdims=True), sink)
        p = np.where(top == -np.inf, 0, np.exp(s - top))
        p /= np.where(top == -np.inf, 1, p.sum(-1, keepdims=True) + np.exp(sink - top))
        if expressions.weight is not None:
            p = np.where(seen, p * evaluate(expressions.weight, known), 0)
    v = np.where(seen.any(2)[..., None], v, 0)  # what no row sees may be anything
    o = p.astype(spec.element.numpy).astype(np.float32) @ v
    if expressions.output is not None and not raw:
        o = np.broadcast_to(evaluate(expressions.output, known | {"o": o, "v_idx": np.arange(o.shape[-1])}), o.shape)
    return o.astype(dtype)


def error(a, b):
    """The largest difference; NaN and infinities have to be at the same places."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
    np.testing.assert_array_equal(np.where(np.isinf(a), a, 0), np.where(np.isinf(b), b, 0))
    finite = np.isfinite(a)
    return np.abs(a[finite] - b[finite]).max(initial=0)


def judge_of(spec, q, k, v, lse_tolerance=1e-3, roundings=1, **values):
    """The error rule of a call, as a function of its outputs by name: o as far outside its bounds as plain attention twice, and a bit.

    `roundings`: that bit counts so often; 2 where scores are so large that float32 does not tell whether a weight is 1, which is rounded.
    """
    known = bounds(spec, q, k, v, **values)
    keys = values["block_table"].shape[1] * spec.page if spec.page else k.shape[spec.order.axis("s")]
    if spec.softmax.normalized:
        most = 2 * distance(plain(spec, q, k, v, **values), known["o"]) + roundings * SLACK[spec.dtype] * max(1, largest(known["o"]))
    else:
        sums = (1 + keys) * max(1, largest(known["max"]))
        most = 4 * max(spec.element.rounding, 1e-6) * (sums + largest(known["o"]))  # `output` may take o anywhere

    def judged(found):
        o, *between = (output_heads_first(x, spec) for x in (found["o"], *known["o"]))
        assert distance(found["o"], known["o"]) <= most, differences("o", o, tuple(between), most)
        if "o_raw" in spec.outputs:
            raw, top = plain(spec, q, k, v, raw=True, **values), largest(known["o_raw"])
            off = 2 * distance(raw, known["o_raw"]) if spec.softmax.normalized else 4 * spec.element.rounding * (sums + top)
            assert distance(found["o_raw"], known["o_raw"]) <= off + SLACK[spec.dtype] * max(1, top)
        for name in found.keys() - {"o", "o_raw"} if spec.softmax.normalized else ():
            assert distance(found[name], known[name]) <= lse_tolerance, name

    return judged


def judge(spec, found, q, k, v, lse_tolerance=1e-3, **values):
    """The error rule; more than one result of a call is judged by `judge_of`."""
    judge_of(spec, q, k, v, lse_tolerance, **values)(found)


def check(spec, q, k, v, lse_tolerance=1e-3, **values):
    """The interpreter judged; returns what it gave."""
    o, lse = run(spec, q, k, v, **values)
    assert o.dtype == q.dtype
    assert lse.dtype == np.float32
    assert o.shape == (*q.shape[:-1], v.shape[-1])
    judge(spec, {"o": o, "lse": lse}, q, k, v, lse_tolerance, **values)
    return o, lse
