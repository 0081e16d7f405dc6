"""`deterministic: true` with gradients of tensors and params: sums in integers, the same bits in whatever order blocks and lanes come."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

import flashgen
from flashgen.emulate import EmulationFault, emulate_backward
from flashgen.emulate.machine import HostKernel
from flashgen.emulate.memory import Watched
from flashgen.errors import CallError, PlanError
from flashgen.plan.backward import plan_backward
from flashgen.plan.geometry import Sizes
from flashgen.plan.kernels.exact_sums import WORDS, counted
from flashgen.render import render
from flashgen.render.environment import environment
from flashgen.spec import Spec
from tests.emulate.kernels import kernel_text, record
from tests.plan.gradients import given, judge

PARAMS = "const float* x; u64* words; u32* y; int n; int sums;"
EACH = """
  if (blockIdx.x == 0) for (int i = threadIdx.x; i < p.n; i += blockDim.x) ExactSum{p.words + i % p.sums, p.sums}.add(p.x[i]);
  else for (int i = threadIdx.x; i < p.n; i += blockDim.x) ExactSum{p.words + i % p.sums, p.sums}.add(p.x[p.n + i]);"""
ROUND = "for (int i = threadIdx.x; i < p.sums; i += blockDim.x) p.y[i] = __float_as_uint(ExactSum{p.words + i, p.sums}.rounded());"


def exact_sums(x, sums, seed, edit=("", "")):
    """The sums of numbers i, i + sums and so on: two blocks add, each a half."""
    struct = environment().get_template("arrays/exact_sum.j2").render().replace(*edit)
    words, y = np.zeros((WORDS, sums), np.uint64), np.zeros(sums, np.uint32)
    said = record(PARAMS, x=x, words=words, y=y, n=len(x) // 2, sums=sums)
    watched = {"x": Watched(x, "read"), "words": Watched(words), "y": Watched(y)}
    for ordinal, (blocks, body) in enumerate(((2, EACH), (1, ROUND)), 1):
        kernel = HostKernel(kernel_text(PARAMS, body, struct))
        kernel.launch(blocks, 64, 1024, said, seed, arrays=watched, ordinal=ordinal)
    return y.view(np.float32)


FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
ANY = FLOATS | st.sampled_from([np.inf, -np.inf, np.nan])


@settings(max_examples=40)
@drawn(arrays_of.arrays(np.float32, (2, 70, 3), elements=FLOATS), st.integers(0, 9))
def test_a_sum_is_that_of_the_numbers_rounded_once(x, seed):
    right = [math.fsum(map(float, x[:, :, i].ravel())) for i in range(3)]
    found = exact_sums(x.ravel(), 3, seed)
    with np.errstate(over="ignore"):
        right = np.float32(right)
    finite = np.isfinite(right)
    assert (found[~finite] == right[~finite]).all()
    assert (np.abs(np.float64(found) - right)[finite] <= np.spacing(np.minimum(np.abs(right), np.float32(2.0**127)))[finite]).all()
    assert (exact_sums(np.ascontiguousarray(x[::-1, ::-1]).ravel(), 3, seed + 1) == found).all()


@settings(max_examples=15)
@drawn(arrays_of.arrays(np.float32, (2, 70, 2), elements=ANY), st.integers(0, 9))
def test_what_is_not_finite_stays_so(x, seed):
    with np.errstate(invalid="ignore", over="ignore"):
        right = np.float32([np.sum(np.float64(x[:, :, i])) for i in range(2)])
    found = exact_sums(x.ravel(), 2, seed)
    assert (np.isnan(found) == np.isnan(right)).all()
    infinite = np.isinf(x).any((0, 1)) & ~np.isnan(right)
    assert (found[infinite] == right[infinite]).all()


WRONG = {
    "a digit is not a word": ("place / 24", "place / 25"),
    "units of another digit": ("<< place % 24", "<< place % 23"),
    "nothing in the next digit": ("if (high) atomicAdd", "if (0) atomicAdd"),
    "bits twice": ("units & 0xFFFFFF", "units"),
    "denormals with a bit more": ("exponent ? bits & 0x7FFFFF | 0x800000 : bits & 0x7FFFFF", "bits & 0x7FFFFF | 0x800000"),
    "denormals a bit too large": ("exponent ? exponent - 1 : 0", "exponent"),
    "no sign": ("negative ? 0 - low : low", "low"),
    "a digit too few": ("i = DIGITS - 1", "i = DIGITS - 2"),
    "unsigned words": ("(long long)words", "words"),
    "not all at once": ("atomicAdd(to, negative", "*to += (negative"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_planted_faults_of_a_sum_are_seen(fault):
    """Four numbers of about one size are added up, for each size that float32 has."""
    sizes = np.arange(-149, 127)
    x = np.float32(np.ldexp([[1.0], [-3.9999], [1.25], [0.5]], sizes)).ravel()
    right = np.float32(np.sum(np.float64(x).reshape(4, -1), 0))
    assert (exact_sums(x, len(sizes), 0) == right).all()
    try:
        found = exact_sums(x, len(sizes), 0, WRONG[fault])
    except EmulationFault:
        return
    assert (found != right).any()


F32 = {"dtype": "float32", "grad": True}
TENSORS = {
    "t": {"shape": ["hq", "n"], **F32},
    "keys": {"shape": ["b", "kv_len"], **F32},
    "rows": {"shape": ["hq", "q_len"], **F32},
    "bias": {"shape": ["b", "hq", "q_len", "kv_len"], **F32},
    "gate": {"shape": ["b", "q_len", "hq", 24], **F32},
    "columns": {"shape": ["hq", 24], **F32},
    "w": {"shape": ["b", "hk", "kv_len"], **F32},
    "learned": {"shape": [24], **F32},
}
DISTANCE = "t[h, q_idx - kv_idx + 90]"
CASES = {
    "by four warps": (
        "sm_80",
        {"score": f"c * tanh((s + c * {DISTANCE} + keys[b, kv_idx] + rows[h, q_idx]) / c)", "softmax": {"sink": "t[h, 3]"}},
    ),
    "by warpgroups": (
        "sm_90a",
        {"score": f"c * tanh((s + {DISTANCE} + keys[b, kv_idx] + rows[h, q_idx] + bias[b, h, q_idx, kv_idx]) / c)", "head_shares": 2},
    ),
    "by two blocks": (
        "sm_90a",
        {"score": f"s + c * {DISTANCE} + keys[b, kv_idx] + rows[h, q_idx]", "weight": "w[b, hk, kv_idx]", "head_dim": {"qk": 136, "v": 24}},
    ),
    "of an output": ("sm_90a", {"output": "o * gate[b, q_idx, h, v_idx] + c * columns[h, v_idx] * rows[h, q_idx]"}),
    "buckets": ("sm_80", {"score": "s + t[h, (q_idx - kv_idx + 90) // 40]", "head_dim": 16, "mask": "full"}),
    "of a norm": ("sm_90a", {"norm": {"query": "learned", "key": "learned"}, "head_dim": 24}),
    "packed": ("sm_80", {"score": "s + keys[b, kv_idx] + c * t[h, q_idx - kv_idx + 90]", "layout": "thd"}),
    "of weights without a softmax": ("sm_90a", {"score": f"sigmoid(s + {DISTANCE})", "softmax": "none", "weight": "w[b, hk, kv_idx]"}),
}


def spec_of(said, **more):
    tensors = {name: how for name, how in TENSORS.items() if f"{name}[" in str(said) or (name == "learned" and "norm" in said)}
    params = {"c": {"default": 1.5, "grad": True}} if "c *" in str(said) else {}
    return Spec(
        **{"dtype": "bfloat16", "head_dim": {"qk": 16, "v": 24}, "mask": "causal", "backward": True, "deterministic": True}
        | {key: x for key, x in said.items() if key != "head_shares"}
        | more,
        tensors=tensors,
        params=params,
    )


def call_of(spec, shape=(2, 4, 2, 70, 90), seed=0):
    batch, heads, kv_heads, q_len, kv_len = shape
    extents = {"b": batch, "hq": heads, "hk": kv_heads, "q_len": q_len, "kv_len": kv_len, "total_q": q_len, "total_k": kv_len, "n": 170}
    random = np.random.default_rng(seed)
    values = {
        t.name: random.standard_normal([extents.get(axis, axis) for axis in t.shape]).astype(np.float32)
        for t in map(spec.given, spec.tensors)
    }
    if spec.geometry.packed:
        values |= {"cu_seqlens_q": np.int32([0, q_len // 3, q_len]), "cu_seqlens_k": np.int32([0, kv_len // 2, kv_len])}
        batch = 1
    return given(spec, batch, heads, kv_heads, q_len, kv_len, seed=seed, dlse=spec.softmax.normalized, **values), values


def bits(found):
    return {name: x.tobytes() for name, x in found.items()}


@pytest.mark.parametrize("case", CASES)
def test_the_same_bits_in_any_order(case):
    arch, said = CASES[case]
    spec = spec_of(said)
    program = plan_backward(spec, arch, head_shares=said.get("head_shares", 1))
    arrays, values = call_of(spec)
    found = [emulate_backward(program, render(program), arrays, values, seed=seed) for seed in (0, 5)]
    judge(spec, found[0], arrays, **values)
    assert bits(found[0]) == bits(found[1])


def test_the_order_matters_to_sums_of_floats():
    """The test above would show nothing if blocks came in one order."""
    spec = spec_of({"score": "s + keys[b, kv_idx]"}, deterministic=False)
    program, (arrays, values) = plan_backward(spec, "sm_90a"), call_of(spec)
    found = [emulate_backward(program, render(program), arrays, values, seed=seed) for seed in (0, 5)]
    assert bits(found[0]) != bits(found[1])


FAULTS = {
    "lanes of one element": ("if (lane > 0) return;", "if (lane > 1) return;"),
    "the first of a diagonal": ("if (row > 1 && column > 1) return;", "if (row > 2 && column > 1) return;"),
    "a diagonal's next": ("__shfl_down_sync(~0u, x, 9)", "__shfl_down_sync(~0u, x, 8)"),
    "a diagonal's end": ("if (row < 4 && column < 4) x += after;", "x += after;"),
    "diagonals that are none": ("!follows || at == along", "true"),
    "sums as they were": ("p.exact_keys[i] = 0;", ";"),
    "a word is not cleared": ("(ExactSum::DIGITS + 1LL)", "(ExactSum::DIGITS + 0LL)"),
    "sums that nobody rounds": ("p.grad_keys.data[i] =", "const float nobody ="),
    "elements of a neighbour": ("{p.exact_keys + (", "{p.exact_keys + 1 + ("),
    "gradients twice": ("weights_alone<MASKED>(", "weights<MASKED>("),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_show(fault):
    old, new = FAULTS[fault]
    reads = "t[h, q_idx - kv_idx + 90] + t[h, (q_idx - kv_idx + 90) // 40] + t[h, 3 * kv_idx - q_idx] + keys[b, kv_idx]"
    spec = spec_of({"score": f"s + {reads}", "mask": "full"})
    program, (arrays, values) = plan_backward(spec, "sm_80"), call_of(spec, (1, 2, 1, 30, 40))
    source = render(program)
    assert old in source.text
    try:
        found = emulate_backward(program, replace(source, text=source.text.replace(old, new)), arrays, values)
    except EmulationFault:
        return
    with pytest.raises(AssertionError):
        judge(spec, found, arrays, **values)


def test_gradients_as_large_and_as_small_as_float32_has_them():
    """Some do is so large that float sums in any order would pass infinity on the way, or so small that most is denormal."""
    spec = spec_of({"score": "s + keys[b, kv_idx]", "head_dim": 16, "mask": "full"})
    program, (arrays, values) = plan_backward(spec, "sm_80"), call_of(spec, (1, 2, 1, 30, 40))
    source = render(program)
    usual = emulate_backward(program, source, arrays, values)["keys"]
    for factor in (2.0**100, 2.0**-120):
        scaled = replace(
            arrays, do=(np.float64(arrays.do) * factor).astype(arrays.do.dtype), dlse=np.float32(np.float64(arrays.dlse) * factor)
        )
        found = [emulate_backward(program, source, scaled, values, seed=seed)["keys"] for seed in (0, 5)]
        assert found[0].tobytes() == found[1].tobytes()
        least = 2.0**-149 / factor  # of float32, beside the usual gradients
        assert np.abs(np.float64(found[0]) / factor - usual).max() <= 0.02 * np.abs(usual).max() + 60 * least


def test_the_interpreter_has_them_too():
    spec = spec_of(CASES["by four warps"][1])
    arrays, values = call_of(spec, (1, 2, 1, 20, 30))
    found = flashgen.compile(spec, backend="interpreter").backward(**vars(arrays), **values)
    names = ("dq", "dk", "dv", *(one.name for one in spec.with_grad))
    judge(spec, dict(zip(names, found, strict=True)), arrays, **values)


BIAS = {"bias": {"shape": ["hq", "q_len", "kv_len"], **F32}}


def test_sums_of_the_size_of_scores_are_refused():
    said = {"dtype": "bfloat16", "head_dim": 64, "backward": True, "deterministic": True, "tensors": BIAS}
    with pytest.raises(
        PlanError, match=r"the gradient of bias would have a sum of 104 bytes for each of q_len x kv_len elements; read it in"
    ):
        plan_backward(Spec(score="s + bias[h, q_idx // 2, kv_idx]", **said), "sm_90a")
    plan_backward(Spec(score="s + bias[h, q_idx // 2, kv_idx]", **said | {"deterministic": False}), "sm_90a")


def test_elements_of_several_heads_or_sequences_are_refused():
    spec = Spec(dtype="bfloat16", head_dim=64, backward=True, deterministic=True, tensors=BIAS, score="s + bias[h, q_idx, kv_idx]")
    assert "exact_bias" not in {s.name for s in plan_backward(spec, "sm_90a").scratch}
    one, two = (Sizes(batch=batch, q_len=5, kv_len=7, heads=4, kv_heads=2) for batch in (1, 2))
    assert not counted(spec, one, {"bias": (4, 5, 7)}).summed
    with pytest.raises(CallError, match="the gradient of bias is summed over b, in any order: this call has 2, bias has 1"):
        counted(spec, two, {"bias": (4, 5, 7)})
    with pytest.raises(CallError, match="summed over h, in any order: this call has 4, bias has 1"):
        counted(spec, one, {"bias": (1, 5, 7)})


def test_a_sum_takes_so_many_numbers():
    spec = spec_of({"score": f"s + {DISTANCE}"})
    sizes = Sizes(batch=1, q_len=2**20, kv_len=2**20, heads=1, kv_heads=1)
    with pytest.raises(CallError, match=r"element of the gradient of t may get 1099511627776 numbers, and a sum holds 549755813888"):
        counted(spec, sizes, {"t": (1, 5)})
    keys = spec_of({"score": "s + keys[b, kv_idx]"})
    assert counted(keys, sizes, {"keys": (1, 2**20)}).summed == (("keys", 2**20),)  # of as many as there are queries


def test_the_plan_says_how():
    spec = spec_of(CASES["by warpgroups"][1])
    told = [why for about, why in plan_backward(spec, "sm_90a").decision.reasons if about == "gradients"]
    assert told[0].startswith("of t, keys, rows, c: each sum is 12 integers of 64 bits")
    assert told[1] == "of bias: each element gets one number, so there is no order"
