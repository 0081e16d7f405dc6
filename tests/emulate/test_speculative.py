"""A tree of guesses behind a long cache in pages, with all that a score and a softmax may say: 1 to 16 tokens of each sequence."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flashgen
from flashgen.bench.paged import in_pages, table
from flashgen.expr.meaning.reference import reference
from flashgen.spec import Spec
from tests.plan.agreement import judge

ROOM, WINDOW, MOST = 128, 24, 16  # places of a sequence, keys to the left that a node sees, nodes
HEADS, KV_HEADS = 4, 2
SAID = {
    "head_dim": 16,
    "dtype": "float16",
    "outputs": ["o", "lse"],
    "mask": f"window({WINDOW}, 0) & ((kv_idx < kv_len - q_len) | bit(ancestors[b, q_idx], (kv_idx - kv_len + q_len) % 32))",
    "score": "softcap * tanh(s / softcap) + slopes[h] * (kv_idx - q_idx - kv_len + q_len)",
    "softmax": {"sink": "sinks[h]"},
    "params": {"softcap": 3.0},
    "tensors": {
        "ancestors": {"shape": ["b", "q_len"], "dtype": "int32"},
        "slopes": {"shape": ["hq"], "dtype": "float32"},
        "sinks": {"shape": ["hq"], "dtype": "float32"},
    },
}
KEYS = st.sampled_from([0, 1, 5, 16, 17, 40, 63, 64, 65, ROOM - 1, ROOM])


def trees(rng, nodes):
    """A random tree's nodes [nodes], each with a bit for each of its ancestors and for itself."""
    found = []
    for i in range(nodes):
        above = found[rng.randint(i)] if i and rng.rand() < 0.9 else 0
        found.append(above | 1 << i)
    return np.array(found, np.int32)


def drawn(spec, lengths, gone, seed=0):
    """q, k and v in pages, and what else a call gives. No key lies in a page before the window of a sequence's first node, or behind its
    last key: `gone` says what is in its place, a number in all of a page, or None, which is no page. What else is hidden is NaN."""
    rng, (of_q, of_k) = np.random.RandomState(seed), zip(*lengths, strict=True)
    block_table, keys = table(len(lengths), ROOM // spec.page, rng), []
    for _ in "kv":
        keys.append(rng.standard_normal((len(lengths), KV_HEADS, ROOM, 16)).astype(spec.element.numpy))
        for b, (n, there) in enumerate(lengths):
            first = max(0, there - n - WINDOW)
            keys[-1][b, :, :first], keys[-1][b, :, there:] = np.nan, np.nan
            if gone is not None:
                keys[-1][b, :, : first // spec.page * spec.page], keys[-1][b, :, -(-there // spec.page) * spec.page :] = gone, gone
    if gone is None:
        for b, (n, there) in enumerate(lengths):
            block_table[b, : max(0, there - n - WINDOW) // spec.page], block_table[b, -(-there // spec.page) :] = -1, -1
    k, v = (in_pages(spec, x, block_table) for x in keys)
    values = {"ancestors": np.concatenate([trees(rng, n) for n in of_q]), "kv_lens": np.array(of_k, np.int32), "block_table": block_table}
    values |= {"slopes": -(0.5 ** np.arange(1, HEADS + 1, dtype=np.float32)), "sinks": rng.standard_normal(HEADS).astype(np.float32)}
    q = (4 * rng.standard_normal((sum(of_q), HEADS, 16))).astype(spec.element.numpy)
    if spec.geometry.packed:
        return q, k, v, values | {"cu_seqlens_q": np.cumsum([0, *of_q], dtype=np.int32)}
    values["ancestors"] = values["ancestors"].reshape(len(lengths), -1)
    return q.reshape(len(lengths), -1, HEADS, 16), k, v, values


@pytest.mark.parametrize("page", [1, 16])
@pytest.mark.parametrize("layout", ["bshd", "thd"])
@given(nodes=st.lists(st.integers(1, MOST), min_size=3, max_size=3), keys=st.lists(KEYS, min_size=1, max_size=3), seed=st.integers(0, 99))
@settings(max_examples=12)
def test_as_the_reference(layout, page, nodes, keys, seed):
    """With pages that hold NaN, infinities or are none where nobody sees them: the same bits."""
    spec = Spec(**SAID, layout=layout, cache={"page": page})
    attention, found = flashgen.compile(spec, backend="interpreter"), []
    of_q = nodes if layout == "thd" else nodes[:1] * 3
    for gone in (np.nan, np.inf, None):
        q, k, v, values = drawn(spec, list(zip(of_q, keys, strict=False)), gone, seed)
        o, lse = attention(q, k, v, check=True, **values)
        found.append((o.tobytes(), lse.tobytes()))
    judge(spec, {"o": o, "lse": lse}, q, k, v, **values)
    assert len(set(found)) == 1


@pytest.mark.parametrize("gone", [np.nan, np.inf, None])
def test_every_number_of_nodes_in_one_launch(gone):
    """A sequence of each number of nodes, over cached keys of many lengths, by one kernel under the race checker."""
    spec = Spec(**SAID, layout="thd", cache={"page": 16})
    lengths = [(n, 37 * n % (ROOM + 1)) for n in range(1, MOST + 1)]
    q, k, v, values = drawn(spec, lengths, gone)
    o, lse = flashgen.compile(spec, "sm_90a", "emulate")(q, k, v, **values)
    judge(spec, {"o": o, "lse": lse}, q, k, v, **values)


@pytest.mark.parametrize("changed", [{"ancestors": -1}, {"slopes": 0}, {"sinks": -9}, {"softcap": 30.0}], ids=str)
def test_a_call_that_forgets_one_is_found(changed):
    spec = Spec(**SAID, layout="thd", cache={"page": 16})
    q, k, v, values = drawn(spec, [(5, 70), (1, 128), (16, 40)], np.nan)
    forgot = {name: np.full_like(values[name], x) if name in values else x for name, x in changed.items()}
    o, lse = flashgen.compile(spec, backend="interpreter")(q, k, v, **(values | forgot))
    for found in ({"o": o}, {"o": reference(spec, q, k, v, **values)[0], "lse": lse}):
        with pytest.raises(AssertionError):
            judge(spec, found, q, k, v, **values)
