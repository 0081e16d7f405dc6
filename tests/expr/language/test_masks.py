"""By hand, in plain NumPy: the named masks, reads outside a tensor, heads in groups, layouts, sinks. Reference and interpreter agree."""

import numpy as np
import pytest

from flashgen.expr.meaning.reference import reference
from flashgen.interpret import interpret
from flashgen.plan import plan
from flashgen.spec import Spec

LENGTHS = [(7, 7), (5, 9), (9, 5), (1, 6), (6, 1), (1, 1), (0, 4), (4, 0), (0, 0)]  # queries, keys
IDS = np.int32([[0, 0, 1, 1, 1, 2, 0, 0, 3], [5, 5, 5, 5, 4, 4, 5, 5, 5]])
MASKS = ("full", "causal", "causal_top_left", "window(2, 1)", "window(0, 0)", "window(-1, 2)", "window(3, -1)", "window(-1, -1)")
MASKS += ("prefix(3)", "chunk(4)", "document(ids)", "~causal", "causal & (document(ids) | prefix(1))")


def pairs(mask, q_len, kv_len):
    """True where a query sees a key, [2, Sq, Sk]. The last query stands beside the last key, at `at`."""
    i, j = np.arange(q_len)[:, None], np.arange(kv_len)[None, :]
    at = i + (kv_len - q_len)
    one, ids = np.ones((q_len, kv_len), bool), IDS[:, :kv_len]
    place = [min(max(x, 0), kv_len - 1) for x in at[:, 0]] if kv_len else []
    same = ids[:, place, None] == ids[:, None, :] if kv_len else np.ones((2, q_len, 0), bool)
    seen = {
        "full": one,
        "causal": j <= at,
        "causal_top_left": j <= i,
        "window(2, 1)": (at - 2 <= j) & (j <= at + 1),
        "window(0, 0)": j == at,
        "window(-1, 2)": j <= at + 2,
        "window(3, -1)": j >= at - 3,
        "window(-1, -1)": one,
        "prefix(3)": one & (j < 3),
        "chunk(4)": np.floor(j / 4) == np.floor(at / 4),
        "document(ids)": same,
        "~causal": j > at,
        "causal & (document(ids) | prefix(1))": (j <= at) & (same | (j < 1)),
    }[mask]
    return np.broadcast_to(seen, (2, q_len, kv_len))


def drawn(q_len, kv_len, heads=1, kv_heads=1, d=8):
    random = np.random.default_rng(10 * q_len + kv_len)
    return [random.standard_normal((2, n, h, d)).astype(np.float32) for n, h in ((q_len, heads), (kv_len, kv_heads), (kv_len, kv_heads))]


def by_hand(q, k, v, seen, bias=0.0, sinks=None, weigh=False):
    """Row by row: o [B, Sq, Hq, D], lse [B, Hq, Sq]. seen: [B, Sq, Sk]; bias of s: [B, Hq, Sq, Sk]; sinks: [Hq]."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    (batch, q_len, heads, d), kv_heads = q.shape, k.shape[2]
    o, lse = np.zeros(q.shape), np.zeros((batch, heads, q_len))
    bias = np.broadcast_to(bias, (batch, heads, *seen.shape[1:]))
    for b, h, i in np.ndindex(lse.shape):
        hk = h // (heads // kv_heads)  # 0 0 1 1 for two heads of keys
        keys = np.flatnonzero(seen[b, i])
        x = k[b, keys, hk] @ q[b, i, h] / np.sqrt(d) + bias[b, h, i, keys]
        total = np.exp(x).sum() + (0 if sinks is None else np.exp(np.float64(sinks[h])))
        p = x if weigh else np.exp(x) / (total or 1)
        o[b, i, h] = p @ v[b, keys, hk]
        lse[b, h, i] = 0 if weigh else np.log(total) if total else -np.inf
    return o, lse


def agree(spec, q, k, v, expected, **values):
    found = interpret(plan(spec, "host"), q, k, v, values)
    for o, lse, error in ((*reference(spec, q, k, v, **values), 1e-12), (found["o"], found["lse"], 2e-5)):
        np.testing.assert_allclose(o, expected[0], error, error)
        np.testing.assert_allclose(lse, expected[1], error, error)


def tensors(values, **shapes):
    return {name: {"shape": list(shape), "dtype": str(values[name].dtype)} for name, shape in shapes.items() if name in values}


@pytest.mark.parametrize(("q_len", "kv_len"), LENGTHS)
@pytest.mark.parametrize("mask", MASKS)
def test_named_masks(mask, q_len, kv_len):
    q, k, v = drawn(q_len, kv_len)
    ids = {"ids": IDS[:, :kv_len]} if "ids" in mask else {}
    spec = Spec(head_dim=8, dtype="float32", mask=mask, tensors=tensors(ids, ids=("b", "kv_len")))
    agree(spec, q, k, v, by_hand(q, k, v, pairs(mask, q_len, kv_len)), **ids)


@pytest.mark.parametrize("shift", [-9, -2, 2, 9])
def test_a_tensor_read_outside_is_read_at_its_end(shift):
    q, k, v = drawn(5, 6)
    values = {"table": np.arange(12, dtype=np.float32).reshape(2, 6) / 4}
    read = {-9: [0, 0, 0, 0, 0, 0], -2: [0, 0, 0, 1, 2, 3], 2: [2, 3, 4, 5, 5, 5], 9: [5, 5, 5, 5, 5, 5]}[shift]
    spec = Spec(head_dim=8, dtype="float32", score=f"s - table[b, kv_idx + {shift}]", tensors=tensors(values, table=("b", "kv_len")))
    agree(spec, q, k, v, by_hand(q, k, v, pairs("full", 5, 6), -values["table"][:, None, None, read]), **values)


def test_an_axis_of_one_is_repeated():
    q, k, v = drawn(3, 4, heads=2)
    values = {"bias": np.random.default_rng(3).standard_normal((1, 2, 1, 4)).astype(np.float32)}
    declared = tensors(values, bias=(1, "hq", 1, "kv_len"))
    spec = Spec(head_dim=8, dtype="float32", score="s + bias[b, h, q_idx, kv_idx]", tensors=declared)
    agree(spec, q, k, v, by_hand(q, k, v, pairs("full", 3, 4), values["bias"]), **values)


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 2), (6, 3), (5, 1), (4, 4)])
def test_heads_share_keys_in_blocks(heads, kv_heads, layout):
    q, k, v = drawn(5, 6, heads, kv_heads)
    spec = Spec(head_dim=8, dtype="float32", layout=layout, mask="causal", score="s + 0.25 * h * kv_idx - 0.5 * hk")
    kv_head = np.repeat(np.arange(kv_heads), heads // kv_heads)
    bias = 0.25 * np.arange(heads)[:, None] * np.arange(6) - 0.5 * kv_head[:, None]
    o, lse = by_hand(q, k, v, pairs("causal", 5, 6), bias[:, None, :])
    if layout == "bhsd":
        q, k, v, o = (x.swapaxes(1, 2) for x in (q, k, v, o))
    agree(spec, q, k, v, (o, lse))


@pytest.mark.parametrize(("q_len", "kv_len"), LENGTHS)
@pytest.mark.parametrize("softmax", ["off_by_one", "sink", "none"])
def test_softmaxes(softmax, q_len, kv_len):
    q, k, v = drawn(q_len, kv_len, heads=2)
    values = {"sinks": np.float32([0.5, -1.25])} if softmax == "sink" else {}
    keys = {"softmax": {"sink": "sinks[h]"} if values else softmax, "tensors": tensors(values, sinks=("hq",))}
    spec = Spec(head_dim=8, dtype="float32", mask="causal", **keys)
    sinks = {"off_by_one": np.zeros(2), "sink": values.get("sinks"), "none": None}[softmax]
    agree(spec, q, k, v, by_hand(q, k, v, pairs("causal", q_len, kv_len), sinks=sinks, weigh=softmax == "none"), **values)
