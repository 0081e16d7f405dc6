"""Lists of blocks: each kernel that walks them, and the interpreter, beside the reference, under the race checker."""

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flashgen
from flashgen.bench.hostile import draw
from flashgen.emulate import emulate
from flashgen.emulate.report import EmulationFault
from flashgen.errors import CallError, PlanError, SpecError
from flashgen.expr.meaning.reference import reference
from flashgen.interpret import interpret
from flashgen.plan import plan
from flashgen.plan.geometry import Sizes
from flashgen.plan.shares import Demand
from flashgen.render import render
from flashgen.spec import Spec
from tests.emulate.test_forward import check
from tests.emulate.test_shares import with_small_shares

INDICES = {"m": 128, "n": 64, "lists": "idx"}
BITMAP = {"m": 64, "n": 32, "lists": "idx", "kind": "bitmap"}
IDS = {"ids": {"shape": ["b", "kv_len"], "dtype": "int32"}}
Case = tuple[str, dict[str, Any], Demand | None]
CASES: dict[str, Case] = {
    "wgmma": ("sm_90a", {"blocks": INDICES, "mask": "kv_idx % 5 != 0", "outputs": ["o", "lse", "max"]}, None),
    "narrow": ("sm_90a", {"blocks": INDICES | {"n": 96}, "mask": "causal & window(150, 0)", "block": {"m": 128, "n": 96}}, None),
    "narrow documents": ("sm_90a", {"blocks": BITMAP | {"m": 128}, "mask": "document(ids)", "tensors": IDS}, None),
    "three warpgroups": ("sm_90a", {"blocks": INDICES | {"m": 192}, "mask": "causal", "block": {"m": 192, "n": 64}}, None),
    "shares": ("sm_90a", {"blocks": BITMAP, "mask": "causal", "layout": "bhsd"}, Demand(shared=True)),
    "mma_sync": ("sm_80", {"blocks": BITMAP | {"n": 64}, "mask": "causal", "dtype": "bfloat16"}, None),
    "few rows": ("sm_80", {"blocks": INDICES | {"m": 16, "n": 16}, "softmax": "off_by_one"}, Demand(shared=True, rows=16)),
    "keys": ("sm_80", {"blocks": INDICES | {"m": 16, "n": 1, "heads": "hk"}, "cache": "contiguous"}, Demand(shared=True, rows=16)),
    "strands": ("sm_90a", {"blocks": INDICES | {"m": 16, "n": 16, "heads": "hk"}}, Demand(shared=True, rows=16, strands=4)),
    "strands of keys": ("sm_80", {"blocks": BITMAP | {"m": 16, "n": 1}, "mask": "causal"}, Demand(shared=True, rows=16, strands=4)),
    "some keys": ("sm_90a", {"blocks": BITMAP | {"m": 128, "n": 24}, "mask": "window(90, 0)"}, None),
    "cache": ("sm_80", {"blocks": INDICES | {"n": 16}, "mask": "window(150, 20)", "cache": "contiguous"}, None),
}

FAULTS = {
    "a tile is whole": ("three warpgroups", "u32(work.whole(tile)) << 30", "1u << 30"),
    "the tile below is whole": ("three warpgroups", "u32(below >= 0 && work.whole(below)) << 31", "1u << 31"),
    "tiles of other warpgroups": ("narrow", "return tile < first ? -1 : tile;", "return tile;"),
    "strands of all tiles": ("strands", ", count = to - from;", ";"),
    "a tile before the n-th": ("strands", "__popc(left); n; --n)", "__popc(left); n > 1; --n)"),
}
LONG = Sizes(batch=1, q_len=1, kv_len=1100, heads=2, kv_heads=1)  # three words of key tiles


@functools.cache
def planned(name: str) -> tuple[Any, Any]:
    arch, said, demand = CASES[name]
    spec = Spec(**{"head_dim": 16, "dtype": "float16", "outputs": ["o", "lse"], **said})
    chosen = plan(spec, arch, demand=demand)
    assert chosen.attention.dealing.narrow == name.startswith(("narrow", "three"))
    chosen = with_small_shares(chosen) if demand else chosen
    return chosen, render(chosen)


@st.composite
def calls(draw_: st.DrawFn, spec: Spec, rows: int) -> tuple[Any, ...]:
    kv_heads = draw_(st.integers(1, 2))
    sizes = Sizes(
        batch=draw_(st.integers(1, 2)),
        q_len=draw_(st.integers(1, rows or 290)),
        kv_len=draw_(st.integers(0, 400) | st.sampled_from([0, 1, 64, 192])),
        heads=kv_heads * draw_(st.integers(1, 2)),
        kv_heads=kv_heads,
    )
    return draw(spec, sizes, draw_(st.sampled_from([(), ("hidden",)])), np.random.RandomState(draw_(st.integers(0, 999))))


def judge(spec: Spec, found: Any, q: Any, k: Any, v: Any, values: Any) -> None:
    """Beside the reference, which is given 0 in place of NaN at keys that nobody sees."""
    check(spec, found, q, *(np.where(np.isfinite(x), x, x.dtype.type(0)) for x in (k, v)), **values)


@pytest.mark.parametrize("name", CASES)
@given(st.data())
@settings(max_examples=2)
def test_a_kernel_walks_lists(name, data):
    chosen, source = planned(name)
    demand = CASES[name][2]
    q, k, v, values = data.draw(calls(chosen.spec, demand.rows if demand else 0))
    judge(chosen.spec, emulate(chosen, source, q, k, v, values, seed=data.draw(st.integers(0, 9))), q, k, v, values)
    judge(chosen.spec, interpret(chosen, q, k, v, values), q, k, v, values)


@pytest.mark.parametrize("fault", FAULTS)
def test_faults(fault):
    name, old, new = FAULTS[fault]
    chosen, source = planned(name)
    sizes = LONG if name == "strands" else Sizes(batch=1, q_len=290, kv_len=400, heads=2, kv_heads=1)
    q, k, v, values = draw(chosen.spec, sizes, (), np.random.RandomState(0))
    if name == "strands":
        values["idx"] = np.sort(np.random.RandomState(0).permutation(68)[:20]).astype(np.int32).reshape(1, 1, 1, 20)
    judge(chosen.spec, emulate(chosen, source, q, k, v, values), q, k, v, values)
    assert source.text.count(old) == 1
    with pytest.raises((AssertionError, EmulationFault)):
        judge(chosen.spec, emulate(chosen, replace(source, text=source.text.replace(old, new)), q, k, v, values), q, k, v, values)


@given(st.data())
@settings(max_examples=20)
def test_the_interpreter_walks_lists(data):
    said = data.draw(st.sampled_from([said for _, said, _ in CASES.values()]))
    blocks = said["blocks"] | {"m": data.draw(st.sampled_from([1, 7, 40, 300])), "n": data.draw(st.sampled_from([1, 3, 50, 500]))}
    schedule = data.draw(st.sampled_from(["auto", "standard", "three_pass", {"outer": "kv"}]))
    keys = {"head_dim": 8, "outputs": ["o", "lse"], **said, "dtype": "float32", "blocks": blocks, "block": "auto"}
    spec = Spec(**keys, **({} if "softmax" in keys else {"schedule": schedule}))
    q, k, v, values = data.draw(calls(spec, 60))
    judge(spec, interpret(plan(spec, "host"), q, k, v, values), q, k, v, values)


def test_a_list_is_a_set_that_ends_at_minus_one():
    spec = Spec(head_dim=8, dtype="float32", blocks={"m": 2, "n": 2, "lists": "idx"})
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, n, 1, 8)).astype(np.float32) for n in (3, 5, 5))
    lists = [[2, 0, 2, -1, 1], [-2, 7, 2**31 - 1, -(2**31), 1]]
    seen = np.array([[1, 1, 0, 0, 1], [1, 1, 0, 0, 1], [0, 0, 1, 1, 0]], np.bool_)
    same = Spec(head_dim=8, dtype="float32", mask="m[q_idx, kv_idx]", tensors={"m": {"shape": ["q_len", "kv_len"], "dtype": "bool"}})
    expected = reference(same, q, k, v, m=seen)[0]
    for found in (reference(spec, q, k, v, idx=np.int32([[lists]]))[0], flashgen.compile(spec)(q, k, v, idx=np.int32([[lists]]))):
        np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("kind", ["indices", "bitmap"])
def test_wrong_shapes_are_refused(kind):
    attn = flashgen.compile(Spec(head_dim=8, dtype="float32", blocks={"m": 4, "n": 2, "lists": "idx", "kind": kind}), backend="interpreter")
    q = k = v = np.ones((2, 9, 2, 8), np.float32)
    last = "k" if kind == "indices" else "1"
    for shape in ((2, 2, 3), (2, 2, 2, 1), (3, 2, 3, 1), (2, 4, 3, 1), (2, 2, 3, 0)):
        with pytest.raises(CallError, match=rf"idx has shape .*: expected \[2, 2, 3, {last}\], \[b, hq, q_len / 4, "):
            attn(q, k, v, idx=np.zeros(shape, np.int32))
    with pytest.raises(CallError, match="idx is int64"):
        attn(q, k, v, idx=np.zeros((1, 1, 3, 1), np.int64))
    with pytest.raises(CallError, match="idx"):
        attn(q, k, v)


def test_lists_have_a_name_of_their_own():
    with pytest.raises(SpecError, match="'idx' is among the params too"):
        Spec(head_dim=64, dtype="float16", blocks=INDICES, params={"idx": 1.0}, score="s * idx")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"dtype": "float32"}, "lists of blocks are walked by kernels of 16-bit operands, of one pass"),
        ({"schedule": "two_pass"}, "lists of blocks are walked by kernels of 16-bit operands, of one pass"),
        ({"block": {"m": 128, "n": 48}}, "block n is 48: it divides that of lists, 64"),
        ({"blocks": INDICES | {"m": 40}}, "multiples of 16 queries, and blocks of lists 40"),
        (
            {"blocks": INDICES | {"n": 1}, "layout": "thd"},
            "blocks of lists have 1 keys: in a backward, and in packed sequences, multiples of 16",
        ),
    ],
)
def test_plans_that_cannot_be(said, message):
    with pytest.raises(PlanError, match=message):
        plan(Spec(**{"head_dim": 64, "dtype": "float16", "blocks": INDICES, **said}), "sm_90a")


def test_the_run_that_is_whole_may_lie_between_others():
    """Keys before a window are in a run where the mask is tested, the first of three."""
    spec = Spec(head_dim=16, dtype="float16", mask="window(100, 0)", block={"m": 64, "n": 16}, blocks={"m": 64, "n": 16, "lists": "idx"})
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 300, 1, 16)).astype(np.float16) for _ in range(3))
    chosen, idx = plan(spec, "sm_80"), np.arange(19, dtype=np.int32).reshape(1, 1, 1, 19).repeat(5, 2)
    assert [loop.masked for loop in chosen.attention.ranges.loops] == [True, False, True]
    check(spec, emulate(chosen, render(chosen), q, k, v, {"idx": idx}), q, k, v, idx=idx)
