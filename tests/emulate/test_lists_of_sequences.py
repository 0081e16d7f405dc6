"""Lists of blocks where keys lie in pages, where sequences lie one behind the other, and for the heads of a group together."""

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flashgen
from flashgen.bench.hostile import draw
from flashgen.emulate import EmulationFault, emulate
from flashgen.errors import CallError, PlanError, SpecError
from flashgen.interpret import interpret
from flashgen.plan import plan
from flashgen.plan.geometry import Sizes, extent
from flashgen.plan.shares import Demand, Demands
from flashgen.render import render
from flashgen.spec import Spec
from tests.emulate.test_shares import with_small_shares
from tests.plan.agreement import judge

INDICES = {"m": 128, "n": 64, "lists": "idx"}
BITMAP = {"m": 64, "n": 32, "lists": "idx", "kind": "bitmap"}
GROUP = {"m": 8, "n": 16, "lists": "idx", "heads": "hk"}
FEW, BOTH = Demand(shared=True, rows=16), {"layout": "thd", "cache": {"page": 16}}
CASES: dict[str, tuple[str, dict[str, Any], Demand | None]] = {
    "pages": ("sm_90a", {"blocks": INDICES, "mask": "causal", "cache": {"page": 16}}, None),
    "a group in pages": ("sm_80", {"blocks": GROUP, "mask": "causal", "cache": {"page": 16}}, FEW),
    "a group, a list a token": ("sm_80", {"blocks": GROUP | {"m": 1}, "mask": "causal"}, FEW),
    "a group, bitmap": ("sm_80", {"blocks": GROUP | {"kind": "bitmap"}, "cache": "contiguous"}, FEW),
    "packed, narrow": ("sm_90a", {"blocks": BITMAP | {"m": 128, "heads": "hk"}, "mask": "causal & window(70, 0)", "layout": "thd"}, None),
    "packed, pages": ("sm_80", {"blocks": INDICES, "mask": "causal", **BOTH}, None),
}


@functools.cache
def planned(name: str) -> tuple[Any, Any]:
    arch, said, demand = CASES[name]
    pinned = {"block": {"m": 128, "n": 32}} if name.endswith("narrow") else {}
    chosen = plan(Spec(**{"head_dim": 16, "dtype": "float16", "outputs": ["o", "lse"], **said, **pinned}), arch, demand=demand)
    chosen = with_small_shares(chosen) if demand else chosen
    assert chosen.dealing.grouped == name.startswith("a group")
    assert chosen.dealing.narrow == name.endswith("narrow")
    return chosen, render(chosen)


@pytest.mark.parametrize("name", CASES)
@given(st.data())
@settings(max_examples=2)
def test_as_the_reference(name, data):
    chosen, source = planned(name)
    spec, kv_heads = chosen.spec, data.draw(st.integers(1, 2))
    group, page = 16 if name.endswith("token") else data.draw(st.integers(1, 2)), spec.page or 1
    sizes = Sizes(
        batch=2,
        q_len=data.draw(st.integers(1, 8 if chosen.dealing.grouped else 290)),
        kv_len=data.draw(st.integers(0, 400 // page) | st.sampled_from([0, 64 // page])) * page,
        heads=group * kv_heads,
        kv_heads=kv_heads,
    )
    kinds = data.draw(st.sampled_from([(), ("integers",)]))
    q, k, v, values = draw(spec, sizes, kinds, np.random.RandomState(data.draw(st.integers(0, 999))))
    for found in (emulate(chosen, source, q, k, v, values, seed=data.draw(st.integers(0, 9))), interpret(chosen, q, k, v, values)):
        judge(spec, {name: found[name] for name in ("o", "lse")}, q, k, v, **values)


@functools.cache
def far_apart() -> tuple[Any, ...]:
    """A call whose tiles are in more words than a warp has lanes, most of them empty."""
    spec = Spec(head_dim=16, dtype="float16", blocks={"m": 16, "n": 16, "lists": "idx"}, outputs=["o", "lse"], split=4)
    chosen, rng = plan(spec, "sm_80", demand=FEW), np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, n, 1, 16)).astype(np.float16) for n in (1, 40000, 40000))
    pairs = 2 * rng.permutation(1250)[:15, None] + np.arange(2)
    return chosen, render(chosen), q, k, v, {"idx": pairs.astype(np.int32).reshape(1, 1, 1, 30)}


def judged(chosen: Any, source: Any, q: Any, k: Any, v: Any, values: Any) -> None:
    found = emulate(chosen, source, q, k, v, values)
    judge(chosen.spec, {name: found[name] for name in ("o", "lse")}, q, k, v, **values)


def test_shares_of_a_list_of_tiles_that_lie_far_apart():
    judged(*far_apart())


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("more = count % cut;", "more = 0;"),  # a few tiles are nobody's
        ("left && found >= begin ? found", "left ? found"),  # a share goes on into the one below
    ],
)
def test_planted_faults_are_found(right, wrong):
    chosen, source, *given = far_apart()
    assert source.text.count(right) == 1
    with pytest.raises((AssertionError, EmulationFault)):
        judged(chosen, replace(source, text=source.text.replace(right, wrong)), *given)


def test_queries_beyond_the_lists_of_a_packed_sequence_see_nothing():
    spec = Spec(head_dim=8, dtype="float32", layout="thd", blocks={"m": 2, "n": 2, "lists": "idx"}, outputs=["o", "lse"])
    q = k = v = np.ones((7, 1, 8), np.float32)
    cu_seqlens = np.array([0, 2, 7], np.int32)
    idx = np.array([[[[0], [0]]], [[[1], [-1]]]], np.int32)
    _, lse = flashgen.compile(spec)(q, k, v, idx=idx, cu_seqlens_q=cu_seqlens, cu_seqlens_k=cu_seqlens)
    assert np.isfinite(lse).tolist() == [[True, True, True, True, False, False, False]]


def test_shapes_of_lists():
    attention = flashgen.compile(Spec(head_dim=8, dtype="float32", blocks={"m": 4, "n": 2, "lists": "idx", "heads": "hk"}))
    q, k = np.ones((2, 9, 4, 8), np.float32), np.ones((2, 9, 2, 8), np.float32)
    attention(q, k, k, idx=np.zeros((2, 2, 3, 1), np.int32))
    with pytest.raises(CallError, match=r"expected \[2, 2, 3, k\], \[b, hk, q_len / 4, k\] rounded up; b and hk may be 1"):
        attention(q, k, k, idx=np.zeros((2, 4, 3, 1), np.int32))
    packed = flashgen.compile(Spec(head_dim=8, dtype="float32", layout="thd", blocks={"m": 4, "n": 2, "lists": "idx", "kind": "bitmap"}))
    ends = {"cu_seqlens_q": np.array([0, 9], np.int32), "cu_seqlens_k": np.array([0, 9], np.int32)}
    with pytest.raises(CallError, match=r"expected \[1, 4, rows, words\], .* and rows and words are 1 or more"):
        packed(q[0], q[0], q[0], idx=np.zeros((1, 4, 0, 1), np.int32), **ends)


def test_lists_may_be_among_the_tensors():
    said = {"head_dim": 64, "dtype": "float16", "blocks": INDICES}
    assert Spec(**said, tensors={"idx": {"shape": ["b", "hq", "tiles", "most"], "dtype": "int32"}}) == Spec(**said)
    with pytest.raises(SpecError, match=r"idx is int32 \[b, tiles, most\] among the tensors, and lists are .* \[b, hq, q_len / 128, k\]"):
        Spec(**said, tensors={"idx": {"shape": ["b", "tiles", "most"], "dtype": "int32"}})


@pytest.mark.parametrize("heads", ["hq", "hk"])
def test_a_token_reads_the_keys_of_a_group_once(heads):
    """And blocks that share them are no more than the lists ask for, however long the cache is."""
    spec = Spec(head_dim=128, dtype="bfloat16", blocks={"m": 16, "n": 64, "lists": "idx", "heads": heads}, cache="contiguous")
    demand = replace(FEW, strands=4)
    chosen = plan(spec, "sm_90a", demand=demand)
    sizes = Sizes(batch=4, q_len=1, kv_len=1 << 17, heads=32, kv_heads=8, listed=32 * 64)
    assert Demands(spec, chosen.arch).of(sizes) == demand
    assert chosen.dealing.grouped == (heads == "hk")
    assert extent(chosen.shares, sizes) == 2


def test_a_tile_of_a_group_has_one_list():
    spec = Spec(head_dim=128, dtype="bfloat16", blocks={"m": 1, "n": 64, "lists": "idx", "heads": "hk"})
    demands, sizes = Demands(spec, plan(spec, "sm_90a").arch), Sizes(batch=1, q_len=9, kv_len=8192, heads=32, kv_heads=2)
    assert demands.of(sizes) == FEW
    assert demands.of(replace(sizes, q_len=1, heads=8)) == replace(FEW, strands=4)
    with pytest.raises(PlanError, match="lists are of 1 queries, of the 4 query heads of a key/value head: 4 rows, and a tile has 16, 32"):
        demands.of(replace(sizes, heads=8))
