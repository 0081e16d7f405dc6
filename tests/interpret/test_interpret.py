"""The interpreter against the float64 reference on random specs and shapes, and whether it does what the plan says."""

import dataclasses
import importlib
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashgen.errors import PlanError
from flashgen.expr import analyse, lower
from flashgen.expr.meaning.reference import reference
from flashgen.interpret import interpret
from flashgen.plan.search import plan
from flashgen.spec import Spec
from flashgen.theory.schedule import schedules
from tests.plan.agreement import SCHEDULES, SLACK, arrays, check, error, run, softmax_of
from tests.plan.any_spec import read

# Random specs and shapes -----------------------------------------------------------------------------------------------

INTEGERS = st.integers(0, 40)
WINDOWS = st.builds("window({}, {})".format, st.integers(-1, 40), st.integers(-1, 40))
MASKS = st.one_of(
    st.sampled_from(["full", "causal", "causal_top_left", "document(ids)", "window(left, 0)", "seen[q_idx, kv_idx]", "kv_idx < 0"]),
    st.sampled_from(
        ["kv_idx < lens[b]", "h == 1", "(q_idx < lens[b]) & causal", "(h < 1) | causal", "(hk == b) & causal", "causal & (kv_idx % 3 != 1)"]
    ),
    WINDOWS,
    INTEGERS.map("prefix({}) | causal".format),
    st.builds("prefix({}) | {}".format, INTEGERS, WINDOWS),
    st.integers(1, 40).map("chunk({}) & causal".format),
)
SCORES = st.sampled_from(
    [
        "s",
        "softcap * tanh(s / softcap)",
        "s - slopes[h] * abs(q_idx + kv_len - q_len - kv_idx)",
        "2.0 * s + bias[kv_idx]",
        "where(kv_idx < q_idx, s, s / 2)",
        "softcap",
    ]
)
PARAMS = {"softcap": 5.0, "left": 7}
TENSORS = {
    "lens": {"shape": ["b"], "dtype": "int32"},
    "ids": {"shape": ["b", "kv_len"], "dtype": "int32"},
    "seen": {"shape": ["q_len", "kv_len"], "dtype": "bool"},
    "slopes": {"shape": ["hq"], "dtype": "float32"},
    "bias": {"shape": ["kv_len"], "dtype": "float32"},
}


def tensors(batch, heads, q_len, kv_len, seed):
    random = np.random.default_rng(seed)
    return {
        "lens": random.integers(0, kv_len + 2, batch).astype(np.int32),
        "ids": np.sort(random.integers(0, 4, (batch, kv_len)), axis=1).astype(np.int32),
        "seen": random.random((q_len, kv_len)) < 0.7,
        "slopes": np.float32(2.0) ** -np.arange(1, heads + 1, dtype=np.float32),
        "bias": random.standard_normal(kv_len).astype(np.float32),
    }


@st.composite
def problems(draw):
    """A spec, arrays and values; tiles are small, so that lengths of a few dozen take many."""
    batch, kv_heads, group, q_len, kv_len, seed = (draw(st.integers(*x)) for x in ((0, 2), (1, 2), (1, 3), (0, 70), (0, 70), (0, 999)))
    score, mask = draw(SCORES), draw(MASKS)
    spec = Spec(
        dtype=draw(st.sampled_from(sorted(SLACK))),
        head_dim={"qk": draw(st.integers(1, 24)), "v": draw(st.integers(1, 24))},
        layout=draw(st.sampled_from(["bshd", "bhsd"])),
        scale=draw(st.sampled_from([None, 0.5, "2 / d"])),
        score=score,
        mask=mask,
        params=read(PARAMS, score, mask),
        tensors=read(TENSORS, score, mask),
        block={"m": draw(st.sampled_from([3, 8, 16, 33])), "n": draw(st.sampled_from([3, 8, 16, 33]))},
        schedule=SCHEDULES[draw(st.sampled_from(sorted(SCHEDULES)))],
    )
    values = tensors(batch, group * kv_heads, q_len, kv_len, seed)
    return spec, arrays(spec, batch, group * kv_heads, kv_heads, q_len, kv_len, seed, draw(st.sampled_from([0.5, 2.0]))), values


@given(problems())
def test_any_spec_on_any_shape(problem):
    spec, (q, k, v), values = problem
    check(spec, q, k, v, **values, softcap=4.0)


def test_documents_without_a_key():
    spec = Spec(dtype="float16", head_dim=8, mask="causal & document(ids)", tensors={"ids": TENSORS["ids"]})
    q, k, v = arrays(spec, 2, 2, 1, 5, 0, seed=1)
    found = interpret(plan(spec, "host"), q, k, v, {"ids": np.zeros((2, 0), np.int32)})
    assert not found["o"].any()
    assert np.isneginf(found["lse"]).all()


@settings(max_examples=20)
@given(problems())
def test_schedules_agree(problem):
    spec, (q, k, v), values = problem
    results = [interpret(dataclasses.replace(plan(spec, "host"), softmax=softmax_of(name)), q, k, v, values) for name in SCHEDULES]
    for found in results[1:]:
        assert error(found["o"], results[0]["o"]) <= 4 * np.abs(np.asarray(v, np.float64)).max(initial=1) * max(spec.element.rounding, 1e-6)
        assert error(found["lse"], results[0]["lse"]) <= 1e-4
        assert error(found["max"], results[0]["max"]) <= 1e-4


def test_the_names_of_schedules_are_their_plans():
    for name, softmax in schedules().items():
        assert softmax_of(name) == softmax


# What the plan says is what is done ------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("mask", ["full", "causal & window(100, 0)"])
def test_plans_for_gpus_run_too(mask, arch):
    spec = Spec(head_dim={"qk": 64, "v": 128}, dtype="bfloat16", mask=mask)
    q, k, v = arrays(spec, 1, 4, 2, 300, 500)
    found, host = (interpret(plan(spec, name), q, k, v) for name in (arch, "host"))
    for name in ("o", "lse", "max", "max_logit"):
        assert error(found[name], host[name]) < 4e-3


def loads(monkeypatch, schedule):
    """The first rows of each load of k and of v, in order: 4 tiles of queries, 4 of keys."""
    spec = Spec(head_dim=8, dtype="float32", block={"m": 16, "n": 16}, schedule=SCHEDULES[schedule])
    q, k, v = arrays(spec, 1, 1, 1, 64, 64)
    seen = {"q": [], "k": [], "v": []}

    def load(x, b, h, rows):
        seen[next(name for name, array in (("q", q), ("k", k), ("v", v)) if np.shares_memory(x, array))].append(rows.start // 16)
        return x[b, h, rows]

    monkeypatch.setattr(importlib.import_module("flashgen.interpret.run"), "_load", load)
    run(spec, q, k, v)
    return seen


@pytest.mark.parametrize(("name", "keys", "vectors"), [("three_pass", 3, 1), ("two_pass", 2, 1), ("one_pass", 1, 1), ("each_step", 1, 1)])
def test_keys_and_values_are_read_once_a_pass(monkeypatch, name, keys, vectors):
    seen = loads(monkeypatch, name)
    assert len(seen["k"]) == 16 * keys
    assert len(seen["v"]) == 16 * vectors


def test_the_outer_loop_is_the_outer_loop(monkeypatch):
    assert loads(monkeypatch, "each_step")["k"] == [0, 1, 2, 3] * 4
    assert loads(monkeypatch, "each_step_kv_outer")["k"] == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    assert loads(monkeypatch, "each_step_kv_outer")["q"] == [0, 1, 2, 3] * 4


def ranged(program, ranges):
    """The program with other key ranges."""
    return dataclasses.replace(program, kernels=(dataclasses.replace(program.attention, ranges=ranges),))


@pytest.mark.parametrize("schedule", ["one_pass", "two_pass", "each_step_kv_outer"])
@pytest.mark.parametrize(("mask", "wrong"), [("full", "causal"), ("causal", "full"), ("window(40, 0)", "window(8, 0)")])
def test_a_wrong_range_shows(mask, wrong, schedule):
    spec = Spec(head_dim=8, dtype="float32", mask=mask, block={"m": 16, "n": 16}, schedule=SCHEDULES[schedule])
    q, k, v = arrays(spec, 1, 1, 1, 64, 64)
    right = plan(spec, "host")
    ranges = analyse(lower(Spec(head_dim=8, dtype="float32", mask=wrong)).mask, 16, 16)
    o = interpret(ranged(right, ranges), q, k, v)["o"]
    assert error(o, interpret(right, q, k, v)["o"]) > 0.01


def test_an_unmasked_tile_beyond_the_keys_is_refused():
    spec = Spec(head_dim=8, dtype="float32", block={"m": 16, "n": 16})
    right = plan(spec, "host")
    loops = tuple(dataclasses.replace(loop, masked=False) for loop in right.attention.ranges.loops)
    unmasked = ranged(right, dataclasses.replace(right.attention.ranges, loops=loops))
    with pytest.raises(AssertionError, match="passes 20 keys"):
        interpret(unmasked, *arrays(spec, 1, 1, 1, 16, 20))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_exponentials_are_rounded_before_their_product_with_v_and_not_in_the_sum(dtype):
    """Two keys, exponentials 1 and p: where the first has v = -(p rounded), o is 0 only if p is rounded."""
    spec = Spec(head_dim=1, dtype=dtype, scale=1)
    q = np.full((1, 1, 1, 1), 0.3, spec.element.numpy)
    p = np.exp(-float(q.item()))
    k, v = (np.array(x, spec.element.numpy).reshape(1, 2, 1, 1) for x in ([0, -1], [-p, 1]))
    o, lse = run(spec, q, k, v)
    assert o.item() == 0
    assert float(v[0, 0, 0, 0]) != -p
    assert lse.item() == pytest.approx(np.log(1 + p), abs=1e-6)


@pytest.mark.parametrize("schedule", [name for name in SCHEDULES if name != "standard"])
def test_nothing_of_the_size_of_the_scores_is_allocated(schedule):
    spec = Spec(head_dim=8, dtype="float16", schedule=SCHEDULES[schedule])
    q, k, v = arrays(spec, 1, 1, 1, 2048, 2048)
    run(spec, q[:, :1], k, v)
    tracemalloc.start()
    run(spec, q, k, v)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2048 * 2048 / 2


def test_a_window_over_long_sequences():
    """A dense boolean mask would be 9.2 GB."""
    spec = Spec(head_dim=16, dtype="float32", mask="causal & window(255, 0)")
    q, k, v = arrays(spec, 1, 1, 1, 96000, 96000)
    tracemalloc.start()
    o, _ = run(spec, q, k, v)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64e6
    assert error(o[:, -32:], reference(spec, q[:, -32:], k, v)[0]) < 1e-5


@pytest.mark.parametrize("pinned", [{"block": {"m": 0, "n": 16}}, {"block": {"n": -1}}, {"stages": 0}, {"warps": -2}, {"head_dim": 0}])
def test_sizes_below_one_are_refused(pinned):
    with pytest.raises(PlanError, match="at least 1"):
        plan(Spec(**{"head_dim": 8, "dtype": "float32", **pinned}), "host")
