"""Lists that a kernel makes of a mask which ranges do not tell: kernels and interpreter beside the reference, under the race checker."""

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashgen.bench.hostile import draw
from flashgen.emulate import emulate
from flashgen.expr import analyse, evaluate, lower
from flashgen.expr.tiles.lists import looked_at, ranges_of
from flashgen.expr.tiles.ranges import EMPTY, FULL, PARTIAL
from flashgen.interpret import interpret
from flashgen.plan import plan
from flashgen.plan.geometry import Sizes
from flashgen.plan.shares import Demand
from flashgen.render import render
from flashgen.spec import Spec
from tests.emulate.test_forward import check

SEEN = {"seen": {"shape": ["b", "q_len", "kv_len"], "dtype": "bool"}}
TIMES = {"of_q": {"shape": ["b", "q_len"], "dtype": "float32"}, "of_k": {"shape": ["b", "kv_len"], "dtype": "float32"}}
IDS = {"ids": {"shape": ["b", "kv_len"], "dtype": "int32"}}
CASES: dict[str, tuple[str, dict[str, Any], Demand | None]] = {
    "blocks, wgmma": ("sm_90a", {"mask": "kv_idx // 64 % 3 == q_idx // 128 % 3", "score": "s * 0.5 + sin(s)"}, None),
    "narrow": ("sm_90a", {"mask": "causal & (kv_idx // 64 % 2 == 0)", "block": {"m": 128, "n": 64}}, None),
    "reads": ("sm_90a", {"mask": "causal & (of_k[b, kv_idx] < of_q[b, q_idx])", "tensors": TIMES, "layout": "bhsd"}, None),
    "extents besides": ("sm_90a", {"mask": "document(ids) | (kv_idx % 256 < 20)", "tensors": IDS}, None),
    "an end in the score": ("sm_80", {"mask": "causal | document(ids)", "score": "where(kv_idx < q_idx, s, s / 2)", "tensors": IDS}, None),
    "whole ranges": ("sm_90a", {"mask": "causal | (kv_idx // 64 % 9 == q_idx // 64 % 9)", "block": {"m": 64, "n": 64}}, None),
    "heads": ("sm_80", {"mask": "kv_idx // 64 % 9 == (q_idx // 128 + h) % 9", "block": {"m": 64, "n": 64}}, None),
    "groups": ("sm_90a", {"mask": "(kv_idx // 64 + b) % 9 == (q_idx // 128 + hk) % 9", "block": {"m": 64, "n": 64}}, None),
    "blocks, mma_sync": ("sm_80", {"mask": "kv_idx // 64 % 3 == q_idx // 64 % 3"}, None),
    "shares": ("sm_80", {"mask": "seen[b, q_idx, kv_idx]", "tensors": SEEN}, Demand(shared=True)),
}
MASKS = [said["mask"] for name, (_, said, _) in CASES.items() if "tensors" not in said and name not in ("heads", "groups")]


@functools.cache
def planned(name: str) -> tuple[Any, Any]:
    arch, said, demand = CASES[name]
    chosen = plan(Spec(**{"head_dim": 16, "dtype": "float16", "outputs": ["o", "lse"], **said}), arch, demand=demand)
    assert chosen.attention.dealing.listed == "mask"
    assert [kernel.entry for kernel in chosen.kernels if "ex" not in kernel.entry and "ran" not in kernel.entry][:2] == [
        "seen_tiles",
        "key_lists",
    ]
    return chosen, render(chosen)


@pytest.mark.parametrize("name", CASES)
@given(st.data())
@settings(max_examples=2)
def test_kernels_list_what_a_mask_shows(name, data):
    chosen, source = planned(name)
    kv_heads = data.draw(st.integers(1, 2))
    sizes = Sizes(
        batch=data.draw(st.integers(1, 2)),
        q_len=data.draw(st.integers(1, 290)),
        kv_len=data.draw(st.integers(0, 300) | st.sampled_from([0, 1, 64, 192])),
        heads=kv_heads * data.draw(st.integers(1, 2)),
        kv_heads=kv_heads,
    )
    random = np.random.RandomState(data.draw(st.integers(0, 999)))
    q, k, v, values = draw(chosen.spec, sizes, data.draw(st.sampled_from([(), ("hidden",)])), random)
    if "seen" in values:  # by blocks, so that some tiles are full and some empty
        blocks = random.random_sample((sizes.batch, 5, 5)) < 0.5
        values["seen"] = blocks.repeat(64, 1).repeat(64, 2)[:, : sizes.q_len, : sizes.kv_len]
    clean = [np.where(np.isfinite(x), x, x.dtype.type(0)) for x in (k, v)]
    check(chosen.spec, emulate(chosen, source, q, k, v, values, seed=data.draw(st.integers(0, 9))), q, *clean, **values)
    check(chosen.spec, interpret(chosen, q, k, v, values), q, *clean, **values)


@given(st.sampled_from(MASKS), st.integers(1, 200), st.integers(1, 200), st.sampled_from([16, 48, 64]), st.sampled_from([16, 32, 80]))
@settings(max_examples=40)
def test_tiles_are_as_they_are_called(mask, q_len, kv_len, m, n):
    mask = lower(Spec(head_dim=16, dtype="float16", mask=mask)).mask
    values = {"b": 0, "h": 0, "hk": 0, "q_len": q_len, "kv_len": kv_len}
    classes = looked_at(mask, analyse(mask, m, n).classes(q_len, kv_len, values), (m, n), values)
    seen = np.broadcast_to(evaluate(mask, {**values, "q_idx": np.arange(q_len)[:, None], "kv_idx": np.arange(kv_len)}), (q_len, kv_len))
    for i, j in np.ndindex(classes.shape):
        tile = seen[i * m : (i + 1) * m, j * n : (j + 1) * n]
        whole = tile.all() and (j + 1) * n <= kv_len
        assert classes[i, j] == (FULL if whole else PARTIAL if tile.any() else EMPTY)
    begin, end, masked = ranges_of(classes)
    taken = np.zeros_like(classes)
    for run, kind in enumerate(masked):
        for i in range(len(classes)):
            taken[i, begin[run, i] : end[run, i]] = PARTIAL if kind else FULL
    np.testing.assert_array_equal(taken, classes)


@pytest.mark.parametrize(
    ("said", "length"),
    [
        ({"mask": "causal & (kv_idx % 4 == 0)"}, 8192),  # every tile is seen
        ({"mask": "kv_idx // 64 % 3 == q_idx // 64 % 3"}, 1024),
        ({"mask": "causal & ((kv_idx // 64 + h) % 4 != 0)"}, 8192),  # each head has tiles of its own, and few less
        ({"mask": "document(ids)", "tensors": IDS}, 8192),
        ({"mask": "kv_idx // 64 % 3 == q_idx // 64 % 3", "schedule": "two_pass"}, 8192),
        ({"mask": "kv_idx // 64 % 3 == q_idx // 64 % 3", "dtype": "float32"}, 8192),
    ],
)
def test_no_lists_where_they_do_not_pay(said, length):
    chosen = plan(Spec(**{"head_dim": 64, "dtype": "float16", **said}), "sm_90a", length=length)
    assert not chosen.attention.dealing.listed


def test_explain_says_what_is_listed():
    chosen = plan(Spec(head_dim=64, dtype="float16", mask="kv_idx // 64 % 3 == q_idx // 64 % 3"), "sm_90a")
    told = dict(chosen.decision.reasons)
    assert "nobody sees" in told["lists"]
    assert "repeats along the key" in told["ranges"]
