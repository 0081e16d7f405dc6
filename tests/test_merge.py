"""States of attention merge to attention over all keys, in any order and grouping, those without keys included."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flashgen
from flashgen.arch import by_name
from flashgen.bench.cases import rounded
from flashgen.emulate import HostKernel
from flashgen.emulate.memory import Watched, fence
from flashgen.errors import CallError
from flashgen.expr.meaning.reference import reference
from flashgen.merge import planned
from flashgen.plan.alone import record
from flashgen.render.source import render_alone
from flashgen.runtime.arrays import liken
from flashgen.spec import Spec
from flashgen.spec.layout import axis_order

SHAPE = (2, 3, 4, 8)  # B, Sq, Hq, Dv
SCALES = st.sampled_from([0.0, 1.0, 30.0, 1e30])


@st.composite
def states(draw):
    """o and lse; some rows have no keys, and o of these may be anything."""
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    lse = rng.standard_normal((SHAPE[0], SHAPE[2], SHAPE[1])) * draw(SCALES)
    empty = rng.random(lse.shape) < draw(st.sampled_from([0.0, 0.3, 1.0]))
    o = np.where(empty.swapaxes(1, 2)[..., None], draw(st.sampled_from([0, np.nan, np.inf])), rng.standard_normal(SHAPE))
    return o, np.where(empty, -np.inf, lse)


def alike(x, y):
    for a, b in zip(x, y, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


@given(states(), states(), states())
def test_associative_commutative_and_nothing_changes_nothing(a, b, c):
    merge = flashgen.merge_states
    alike(merge(*merge(*a, *b), *c), merge(*a, *merge(*b, *c)))
    alike(merge(*a, *b), merge(*b, *a))
    nothing = np.zeros(SHAPE), np.full((SHAPE[0], SHAPE[2], SHAPE[1]), -np.inf)
    alike(merge(*a, *nothing), (np.where(a[1].swapaxes(1, 2)[..., None] == -np.inf, 0, a[0]), a[1]))
    alike(merge(*nothing, *nothing), nothing)


@given(st.sampled_from(["bshd", "bhsd"]), st.integers(0, 40), st.integers(0, 999))
@settings(max_examples=20)
def test_keys_in_two_parts(layout, at, seed):
    rng = np.random.default_rng(seed)
    spec = Spec(head_dim=8, dtype="float32", mask="(kv_idx + q_idx) % 7 < 5", outputs=["o", "lse"], layout=layout)
    q, k, v = (rng.standard_normal(spec.order.arranged(b=2, s=s, h=h, d=8)).astype(np.float32) for s, h in ((5, 4), (40, 2), (40, 2)))
    axis = spec.order.axis("s")
    (ka, kb), (va, vb) = np.split(k, [at], axis), np.split(v, [at], axis)
    behind = Spec(**(spec.to_json() | {"mask": f"(kv_idx + {at} + q_idx) % 7 < 5"}))
    whole = reference(spec, q, k, v)
    merged = flashgen.merge_states(*reference(spec, q, ka, va), *reference(behind, q, kb, vb), layout)
    alike(merged, whole)


def test_dtypes_stay():
    o, lse = np.ones(SHAPE, np.float16), np.zeros((SHAPE[0], SHAPE[2], SHAPE[1]), np.float32)
    found = flashgen.merge_states(o, lse, o, lse)
    assert [x.dtype for x in found] == [o.dtype, lse.dtype]
    assert (found[0] == 1).all()
    np.testing.assert_allclose(found[1], np.log(2), rtol=1e-6)


def test_what_does_not_fit_is_said():
    o, lse = np.ones(SHAPE), np.zeros((SHAPE[0], SHAPE[2], SHAPE[1]))
    with pytest.raises(CallError, match=r"lse_b has shape \(2, 3, 4\) beside o_a \(2, 3, 4, 8\): expected \(2, 4, 3\) for layout bshd"):
        flashgen.merge_states(o, lse, o, lse.swapaxes(1, 2))
    with pytest.raises(CallError, match="unknown layout 'bsdh'"):
        flashgen.merge_states(o, lse, o, lse, "bsdh")
    with pytest.raises(CallError, match="o_b is a list: merge_states takes arrays of NumPy, CuPy and PyTorch"):
        flashgen.merge_states(o, lse, [1], lse)
    with pytest.raises(CallError, match="unknown layout None: known: bshd, bhsd, thd"):
        flashgen.merge_states(o, lse, o, lse, None)
    for name, given_to in {"o_a": (o.astype(int), lse), "lse_a": (o, lse.astype(int))}.items():
        with pytest.raises(CallError, match=f"{name} is int64: expected floats"):
            flashgen.merge_states(*given_to, o, lse)
    with pytest.raises(CallError, match="o_a has 3 axes"):
        flashgen.merge_states(o[0], lse, o, lse)


@given(st.sampled_from(["float16", "bfloat16", "float32"]), st.sampled_from(["bshd", "bhsd", "thd"]), states(), states())
@settings(max_examples=12)
def test_the_kernel_merges_likewise(dtype, layout, a, b):
    """Under the race checker: rows without keys in one state or in both, strides of any kind."""
    order, arrays = axis_order(layout), {}
    for which, (o, lse) in (("a", a), ("b", b)):
        shaped = o[0] if order.packed else o.transpose(order.from_rows_first)
        arrays |= {f"o_{which}": rounded(shaped, dtype), f"lse_{which}": (lse[0] if order.packed else lse).astype(np.float32)}
    arrays = {name: fence(x) for name, x in arrays.items()}
    want = flashgen.merge_states(*arrays.values(), layout)
    arrays |= {"o": fence(np.empty_like(arrays["o_a"])), "lse": fence(np.empty_like(arrays["lse_a"]))}
    plan, strides, scalars = planned({name: liken(x, name).layout for name, x in arrays.items()}, order, "sm_90a")
    held = record(plan, {name: x.ctypes.data for name, x in arrays.items()}, strides, scalars)
    watched = {name: Watched(x, "fill" if name in ("o", "lse") else "read") for name, x in arrays.items()}
    kernel = HostKernel(render_alone(plan).text, "merge", "merge.cu")
    kernel.launch(-(-scalars["rows"] // plan.warps), plan.threads, 0, held, 0, arrays=watched, arch=by_name("sm_90a"))
    step = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-5}[dtype]
    for name, x in zip(("o", "lse"), want, strict=True):
        np.testing.assert_allclose(arrays[name].astype(np.float64), x.astype(np.float64), rtol=step, atol=step)


@pytest.mark.parametrize("layout", ["bshd", "thd"])
def test_a_shared_prefix_once(layout):
    """The cascade of the recipe: all queries meet the prefix as one sequence, each its own suffix, and both are merged."""
    rng, (batch, before, behind) = np.random.default_rng(0), (3, 40, 24)
    q, k, v = (rng.standard_normal((batch, n, h, 8)).astype(np.float32) for n, h in ((2, 4), (behind, 2), (behind, 2)))
    prefix = [rng.standard_normal((1, before, 2, 8)).astype(np.float32) for _ in range(2)]
    plain = {"head_dim": 8, "dtype": "float32", "outputs": ["o", "lse"]}
    whole = Spec(**plain, mask="causal")
    keys = [np.concatenate([np.repeat(x, batch, 0), own], 1) for x, own in zip(prefix, (k, v), strict=True)]
    wanted = reference(whole, q, *keys)
    if layout == "bshd":
        of_prefix = flashgen.compile(plain | {"mask": "full"}, backend="interpreter")(q.reshape(1, -1, 4, 8), *prefix)
        of_prefix = of_prefix[0].reshape(q.shape), of_prefix[1].reshape(4, batch, 2).transpose(1, 0, 2)
        found = flashgen.merge_states(*of_prefix, *flashgen.compile(plain | {"mask": "causal"}, backend="interpreter")(q, k, v))
    else:
        ends = {"cu_seqlens_q": np.arange(batch + 1, dtype=np.int32) * 2, "cu_seqlens_k": np.arange(batch + 1, dtype=np.int32) * behind}
        rows = [x.reshape(-1, *x.shape[2:]) for x in (q, k, v)]
        suffix = flashgen.compile(plain | {"mask": "causal", "layout": "thd"}, backend="interpreter")(*rows, **ends)
        one = {"cu_seqlens_q": np.int32([0, 2 * batch]), "cu_seqlens_k": np.int32([0, before])}
        shared = flashgen.compile(plain | {"mask": "full", "layout": "thd"}, backend="interpreter")(
            rows[0], prefix[0][0], prefix[1][0], **one
        )
        o, lse = flashgen.merge_states(*shared, *suffix, "thd")
        found = o.reshape(q.shape), lse.reshape(4, batch, 2).transpose(1, 0, 2)
    for x, y in zip(found, wanted, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)
