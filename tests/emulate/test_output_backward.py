"""Gradients through `output`: the forward gives o_raw, what o was before it, and the backward takes that in the place of o."""

from dataclasses import replace

import numpy as np
import pytest

import flashgen
from flashgen.emulate import emulate, emulate_backward
from flashgen.errors import CallError, SpecError
from flashgen.expr.meaning.reference import before_output
from flashgen.interpret import interpret, interpret_backward
from flashgen.plan import plan
from flashgen.plan.backward import plan_backward
from flashgen.render import render
from flashgen.spec import Spec
from tests.emulate.test_backward import tensor
from tests.plan.agreement import judge_of
from tests.plan.gradients import given, judge

F32 = {"dtype": "float32", "grad": True}
GATE = {"shape": ["b", "q_len", "hq", 72], **F32}
BIAS, SCALES = {"shape": ["hq", 72], **F32}, {"shape": ["hq"], **F32}
ROWS, TABLE = {"shape": ["hq", "q_len"], **F32}, {"shape": [7], **F32}
VARIANTS = {
    "gated": {"output": "o * sigmoid(gate[b, q_idx, h, v_idx])", "tensors": {"gate": GATE}, "mask": "causal"},
    "affine": {
        "output": "o * scales[h] * rows[h, q_idx] + bias[h, v_idx] + c",
        "tensors": {"bias": BIAS, "scales": SCALES, "rows": ROWS},
        "params": {"c": {"default": 0.5, "grad": True}},
        "softmax": {"sink": "scales[h]"},
        "score": "s * scales[h]",
    },
    "of o itself": {
        "output": "c * tanh(o / c) + table[int(4.0 * o) + 3]",
        "tensors": {"table": TABLE},
        "params": {"c": 1.5},
        "layout": "bhsd",
    },
    "without a gradient": {"output": "where(v_idx % 2 == 0, 2.0 * o, o * o)", "mask": "window(40, 10)"},
    "weighed": {
        "output": "o * sigmoid(gate[b, q_idx, h, v_idx])",
        "weight": "rows[h, kv_idx]",
        "tensors": {"gate": GATE, "rows": ROWS | {"shape": ["hq", "kv_len"]}},
    },
    "scores as weights": {"output": "o * scales[h]", "score": "sigmoid(s)", "softmax": "none", "tensors": {"scales": SCALES}},
    "packed": {
        "output": "silu(o) * rows[b, q_idx]",
        "layout": "thd",
        "mask": "causal",
        "tensors": {"rows": ROWS | {"shape": ["b", "q_len"]}},
    },
    "names that begin alike": {
        "output": "o * x[h, q_idx] * row_x * block_x + y[h, v_idx] * rows_y",
        "tensors": {"x": ROWS, "y": BIAS},
        "params": {name: {"default": 0.5, "grad": True} for name in ("row_x", "block_x", "rows_y")},
    },
    "in turns": {"output": "o / (1.0 + abs(o))", "mask": "causal", "deterministic": True},
}
SHAPES = [(2, 4, 2, 100, 150), (1, 2, 2, 150, 40), (1, 1, 1, 3, 0)]
HEADS = {"one block": {"qk": 40, "v": 72}, "two blocks": {"qk": 136, "v": 72}}


def called(spec, shape, seed=0):
    batch, heads, kv_heads, q_len, kv_len = shape
    extents = {"b": batch, "hq": heads, "hk": kv_heads, "q_len": q_len, "kv_len": kv_len, "total_q": q_len}
    values = {t.name: tensor(*[extents.get(axis, axis) for axis in t.shape], seed=i) for i, t in enumerate(map(spec.given, spec.tensors))}
    if spec.geometry.packed:
        values |= {"cu_seqlens_q": np.int32([0, q_len // 3, q_len]), "cu_seqlens_k": np.int32([0, kv_len // 2, kv_len])}
        batch = 1
    return given(spec, batch, heads, kv_heads, q_len, kv_len, seed=seed, dlse=True, **values), values


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("name", VARIANTS)
def test_hopper(name, heads):
    spec = Spec(head_dim=HEADS[heads], dtype="bfloat16", backward=True, **VARIANTS[name])
    program = plan_backward(spec, "sm_90a")
    both = name == "affine"  # of a slope that needs q k^T, too
    assert program.skeleton == ("backward_sm90" if heads == "one block" else "backward_sm80" if both else "backward_sm90_pair")
    for shape in SHAPES:
        arrays, values = called(spec, shape)
        judge(spec, emulate_backward(program, render(program), arrays, values), arrays, **values)


@pytest.mark.parametrize("name", VARIANTS)
def test_sm_80_and_the_interpreter(name):
    spec = Spec(head_dim={"qk": 24, "v": 72}, dtype="float16", backward=True, **VARIANTS[name])
    program, host = plan_backward(spec, "sm_80"), plan_backward(spec, "host")
    for shape in SHAPES:
        arrays, values = called(spec, shape, seed=1)
        judge(spec, emulate_backward(program, render(program), arrays, values), arrays, **values)
        judge(spec, interpret_backward(host, arrays, values), arrays, **values)


@pytest.mark.parametrize(("arch", "dtype"), [("sm_90a", "bfloat16"), ("sm_80", "float16"), ("sm_80", "float32"), ("host", "float16")])
@pytest.mark.parametrize("name", ["gated", "affine", "packed", "scores as weights"])
def test_the_forward_gives_both(name, arch, dtype):
    spec = Spec(head_dim={"qk": 24, "v": 72}, dtype=dtype, backward=True, **VARIANTS[name])
    if dtype == "float32" and spec.geometry.packed:
        pytest.skip("float32 on sm_80 takes sequences apart")
    assert spec.outputs == (("o", "o_raw") if name == "scores as weights" else ("o", "lse", "o_raw"))
    program = plan(spec, arch)
    for shape in SHAPES:
        arrays, values = called(spec, shape)
        run = (lambda *x: interpret(program, *x)) if arch == "host" else (lambda *x: emulate(program, render(program), *x))
        found = run(arrays.q, arrays.k, arrays.v, values)
        judge_of(spec, arrays.q, arrays.k, arrays.v, **values)(found)


@pytest.mark.parametrize("split", [2, 3])
def test_shares_of_keys_give_both(split):
    more = {"outputs": ["o", "o_raw"], "output": "o * scales[h]", "tensors": {"scales": {"shape": ["hq"], "dtype": "float32"}}}
    spec = Spec(head_dim=16, dtype="float16", split=split, **more)
    program = plan(spec, "sm_90a")
    assert program.combine
    arrays, values = called(spec, (1, 2, 1, 1, 600))
    judge_of(spec, arrays.q, arrays.k, arrays.v, **values)(emulate(program, render(program), arrays.q, arrays.k, arrays.v, values))


def test_rows_without_keys_give_what_their_output_reads():
    """Their o is 0 before it: a gate gets nothing, what is added gets all, q and k nothing."""
    spec = Spec(
        head_dim={"qk": 40, "v": 72},
        dtype="bfloat16",
        mask="kv_idx < q_idx - 99",
        backward=True,
        **VARIANTS["affine"] | {"softmax": "softmax"},
    )
    arrays, values = called(spec, (1, 2, 2, 60, 60))
    program = plan_backward(spec, "sm_90a")
    found = emulate_backward(program, render(program), arrays, values)
    judge(spec, found, arrays, **values)
    assert not any(found[name].any() for name in ("dq", "dk", "dv", "scales", "rows"))
    assert found["bias"].any()


def test_a_call_and_its_gradients():
    attn = flashgen.compile(
        {
            "dtype": "float32",
            "head_dim": 8,
            "output": "o * sigmoid(g[h, v_idx])",
            "tensors": {"g": {"shape": ["hq", 8], **F32}},
            "backward": True,
        },
        backend="interpreter",
    )
    q, k, v, do = np.random.default_rng(0).standard_normal((4, 1, 5, 2, 8), np.float32)
    g = tensor(2, 8)
    o, lse, o_raw = attn(q, k, v, g=g)
    np.testing.assert_allclose(o_raw, before_output(attn.spec, q, k, v, g=g), atol=1e-5)
    np.testing.assert_allclose(o, o_raw / (1 + np.exp(-g)), rtol=1e-5)
    *_, dg = attn.backward(do, q, k, v, o_raw=o_raw, lse=lse, g=g)
    with pytest.raises(CallError, match="o is given, and the spec has output: pass o_raw="):
        attn.backward(do, q, k, v, o, lse, g=g)
    with pytest.raises(CallError, match="o_raw is missing, and the spec has output"):
        attn.backward(do, q, k, v, lse=lse, g=g)
    for wrong, says in (
        (o_raw[:, 1:], r"o_raw has shape \[1, 4, 2, 8\]: expected \[1, 5, 2, 8\]"),
        (np.float64(o_raw), "o_raw is float64: expected float32. Cast it, o_raw.astype"),
        ([1.0], "o_raw is a list"),
    ):
        with pytest.raises(CallError, match=says):
            attn.backward(do, q, k, v, o_raw=wrong, lse=lse, g=g)
    with pytest.raises(CallError, match="out for dq shares memory with o_raw"):
        attn.backward(do, q, k, v, o_raw=o_raw, lse=lse, g=g, out=(o_raw, *np.empty((2, *k.shape), np.float32), np.empty_like(g)))
    np.testing.assert_allclose(dg, (do * o_raw).sum((0, 1)) * np.exp(-g) / (1 + np.exp(-g)) ** 2, atol=1e-5)


FAULTS = {  # what is written instead of what
    "a row of another": ("output_row(q_idx)", "output_row(q_idx + 1)"),
    "do as it is given": ("d * variant.output_slope(x[i], row, column + i)", "d"),
    "another column": ("slope_of_gate(x[i], row, column + i)", "slope_of_gate(x[i], row, column)"),
    "delta of what is given": ("p.dout, p.dout_strides, tile.head", "p.given_do, p.given_do_strides, tile.head"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(fault):
    right, wrong = FAULTS[fault]
    spec = Spec(head_dim={"qk": 40, "v": 72}, dtype="bfloat16", backward=True, **VARIANTS["gated"])
    program = plan_backward(spec, "sm_90a")
    source, (arrays, values) = render(program), called(spec, (1, 2, 1, 70, 150))
    assert right in source.text
    found = emulate_backward(program, replace(source, text=source.text.replace(right, wrong)), arrays, values)
    with pytest.raises(AssertionError):
        judge(spec, found, arrays, **values)


def test_o_raw_is_of_an_output():
    with pytest.raises(SpecError, match="o_raw is what o was before `output`, and there is none"):
        Spec(head_dim=64, dtype="float16", outputs=["o", "o_raw"])
