"""Gradients where keys count for more or less after the softmax: of what a weight reads, and of q, k and v beside it."""

from dataclasses import replace

import numpy as np
import pytest

from flashgen.emulate import emulate_backward
from flashgen.interpret import interpret_backward
from flashgen.plan.backward import plan_backward
from flashgen.render import render
from flashgen.spec import Spec
from tests.emulate.test_backward import tensor
from tests.plan.gradients import completed, given, judge

KEYS = {"shape": ["b", "hk", "kv_len"], "dtype": "float32", "grad": True}
ROWS = {"shape": ["hq", "q_len"], "dtype": "float32", "grad": True}
PAIRS = {"shape": ["q_len", "kv_len"], "dtype": "float32", "grad": True}
TABLE = {"shape": [9], "dtype": "float32", "grad": True}
VARIANTS = {
    "of a key": {"weight": "g[b, hk, kv_idx]", "mask": "causal & (kv_idx % 5 != 1)", "tensors": {"g": KEYS}},
    "without gradients": {"weight": "exp(-0.02 * abs(q_idx - kv_idx))", "mask": "window(90, 20)"},
    "of everything": {
        "weight": "c * g[b, hk, kv_idx] * sigmoid(r[h, q_idx]) + t[(q_idx - kv_idx) // 16] + 0.1 * pairs[q_idx, kv_idx]",
        "score": "15.0 * tanh(s / 15.0) + g[b, hk, kv_idx]",
        "softmax": {"sink": "c"},
        "tensors": {"g": KEYS, "r": ROWS, "t": TABLE, "pairs": PAIRS},
        "params": {"c": {"default": 0.5, "grad": True}},
    },
    "a slope beside it": {"weight": "0.1 * r[h, q_idx] + 1.0", "score": "gelu(s)", "tensors": {"r": ROWS | {"grad": False}}},
    "scores as weights": {"weight": "g[b, hk, kv_idx]", "score": "sigmoid(s)", "softmax": "none", "tensors": {"g": KEYS}},
    "scores alone": {"weight": "1.0 / (1.0 + abs(q_idx - kv_idx))", "score": "silu(s)", "softmax": "none", "mask": "causal"},
    "packed": {"weight": "g[b, kv_idx]", "layout": "thd", "mask": "causal", "tensors": {"g": KEYS | {"shape": ["b", "kv_len"]}}},
    "in turns": {"weight": "g[b, hk, kv_idx]", "mask": "causal", "deterministic": True, "tensors": {"g": KEYS | {"grad": False}}},
    "of lists": {"weight": "g[b, hk, kv_idx]", "tensors": {"g": KEYS}, "blocks": {"m": 96, "n": 128, "lists": "idx", "kind": "bitmap"}},
}
SHAPES = [(2, 4, 2, 100, 150), (1, 2, 2, 150, 40), (1, 1, 1, 3, 0)]
HEADS = {"wide": 64, "one block": {"qk": 72, "v": 128}, "two blocks": {"qk": 136, "v": 160}}


def values_of(spec, shape):
    batch, heads, kv_heads, q_len, kv_len = shape
    extents = {"b": batch, "hq": heads, "hk": kv_heads, "q_len": q_len, "kv_len": kv_len, "total_k": kv_len}
    found = {t.name: tensor(*[extents.get(axis, axis) for axis in t.shape], seed=i) for i, t in enumerate(map(spec.given, spec.tensors))}
    if spec.geometry.packed:
        found |= {"cu_seqlens_q": np.int32([0, q_len // 3, q_len]), "cu_seqlens_k": np.int32([0, kv_len // 2, kv_len])}
    if spec.blocks:
        tiles = (batch, 1, -(-q_len // spec.blocks.m), -(-kv_len // spec.blocks.n))
        found["idx"] = np.random.default_rng(0).integers(0, 2, tiles).astype(np.int32)
    return found


def called(spec, shape, seed=0):
    values = values_of(spec, shape)
    return given(spec, 1 if spec.geometry.packed else shape[0], *shape[1:], seed=seed, dlse=True, **values), values


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("name", VARIANTS)
def test_hopper(name, heads):
    spec = Spec(head_dim=HEADS[heads], dtype="bfloat16", backward=True, **VARIANTS[name])
    program = plan_backward(spec, "sm_90a")
    refused = heads == "two blocks" and name in ("of everything", "scores as weights")
    assert program.skeleton == ("backward_sm80" if refused else "backward_sm90_pair" if heads == "two blocks" else "backward_sm90")
    for shape in SHAPES[: 1 if refused else 3]:
        arrays, values = called(spec, shape)
        judge(spec, emulate_backward(program, render(program), arrays, values), arrays, **values)


@pytest.mark.parametrize("name", [name for name in VARIANTS if name not in ("in turns", "of lists")])
def test_sm_80_and_the_interpreter(name):
    spec = Spec(head_dim=24, dtype="float16", backward=True, **VARIANTS[name])
    program, host = plan_backward(spec, "sm_80"), plan_backward(spec, "host")
    for shape in SHAPES:
        arrays, values = called(spec, shape, seed=1)
        judge(spec, emulate_backward(program, render(program), arrays, values), arrays, **values)
        judge(spec, interpret_backward(host, arrays, values), arrays, **values)


@pytest.mark.parametrize(("arch", "head_dim"), [("sm_80", 16), ("sm_90a", 64), ("sm_90a", 136)])
def test_what_a_weight_is_where_a_mask_hides_its_key_reaches_nothing(arch, head_dim):
    """NaN and infinities there; where no query sees a key, its tensors get no gradient. A weight of 0 has one."""
    spec = Spec(head_dim=head_dim, dtype="bfloat16", backward=True, **VARIANTS["of a key"])
    arrays, values = called(spec, (1, 2, 1, 70, 150))
    values["g"][..., 1::5], values["g"][..., 3::5] = np.inf, 0
    values["g"][..., 6::10] = np.nan
    arrays = completed(spec, arrays.q, arrays.k, arrays.v, **values)
    program = plan_backward(spec, arch)
    found = emulate_backward(program, render(program), arrays, values)
    judge(spec, found, arrays, **values)
    assert not found["g"][..., 1::5].any()
    assert found["g"][..., 3::5].any()


FAULTS = {  # of who, what is written instead of what
    "dv without it": ("sm_80", 16, "s[j] = w * p", "s[j] = p"),
    "ds without it": ("sm_90a", 64, "w * dp[i] - delta", "dp[i] - delta"),
    "of another key": ("sm_90a", 64, "variant.weight(row, key(i))", "variant.weight(row, 0)"),
    "a rounded product for p": ("sm_90a", 136, "return ptx::bf16x2(s[2 * i], s[2 * i + 1]);", "return weights[i];"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(fault):
    arch, head_dim, right, wrong = FAULTS[fault]
    spec = Spec(head_dim=head_dim, dtype="bfloat16", backward=True, **VARIANTS["of a key"])
    arrays, values = called(spec, (1, 2, 1, 70, 150))
    program = plan_backward(spec, arch)
    source = render(program)
    assert right in source.text
    found = emulate_backward(program, replace(source, text=source.text.replace(right, wrong)), arrays, values)
    with pytest.raises(AssertionError):
        judge(spec, found, arrays, **values)
