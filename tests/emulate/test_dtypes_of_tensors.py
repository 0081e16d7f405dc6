"""Tensors of 16 bits and of bytes: read as they lie in memory, two at a time where they lie beside each other along the keys."""

import ml_dtypes
import numpy as np
import pytest

import flashgen
from flashgen.bench import hostile
from flashgen.emulate import emulate
from flashgen.expr.meaning.reference import reference
from flashgen.interpret import interpret
from flashgen.plan import plan
from flashgen.plan.geometry import Sizes
from flashgen.render import render
from flashgen.runtime import nvrtc
from flashgen.spec import Spec
from tests.plan.agreement import judge_of

NUMPY = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def spec_of(half, dtype="float16", **further):
    """Beside each other along the keys, one by one, and the same for a row."""
    tensors = {
        "bias": {"shape": ["b", "hq", "q_len", "kv_len"], "dtype": half},
        "slopes": {"shape": ["hq"], "dtype": half},
        "seen": {"shape": ["b", "kv_len"], "dtype": "uint8"},
        "near": {"shape": ["n"], "dtype": "uint8"},
    }
    score = "s + bias[b, h, q_idx, kv_idx] - max(slopes[h] * abs(q_idx - kv_idx), -slopes[h])"
    mask = "(seen[b, kv_idx] | (kv_idx == 0)) & ~near[abs(q_idx - kv_idx)]"
    return Spec(head_dim=16, dtype=dtype, score=score, mask=mask, tensors=tensors, softmax={"sink": "slopes[h]"}, **further)


@pytest.mark.parametrize(
    ("half", "dtype", "arch"),
    [
        ("float16", "float16", "sm_80"),
        ("bfloat16", "bfloat16", "sm_90a"),
        ("float16", "float32", "sm_90a"),
        ("bfloat16", "float32", "host"),
    ],
)
@pytest.mark.parametrize("kv_len", [90, 65])
def test_values(half, dtype, arch, kv_len):
    spec = spec_of(half, dtype)
    q, k, v, values = hostile.draw(spec, Sizes(1, 33, kv_len, 2, 1), ["axes", "views"], np.random.RandomState(kv_len))
    assert {values["bias"].dtype, values["slopes"].dtype} == {np.dtype(NUMPY[half])}
    chosen = plan(spec, arch)
    found = interpret(chosen, q, k, v, values) if arch == "host" else emulate(chosen, render(chosen), q, k, v, values)
    judge_of(spec, q, k, v, 2e-3, **values)(found)
    assert reference(spec, q, k, v, **values)[0].shape == found["o"].shape


@pytest.mark.parametrize("half", NUMPY)
def test_texts_compile(half):
    for arch in ("sm_80", "sm_90a"):
        source = render(plan(spec_of(half, outputs=["o", "lse"]), arch))
        assert f"const {'F16' if half == 'float16' else 'BF16'}* bias_row" in source.text
        nvrtc.compile(source)


def test_attention_reads_arrays_as_they_are():
    q = np.random.default_rng(0).standard_normal((1, 9, 2, 16)).astype(np.float32)
    bias = np.random.default_rng(1).standard_normal((9, 9))
    mask = np.arange(81, dtype=np.uint8).reshape(9, 9) * (np.arange(9) % 2 == 0)
    given = {"score": "s + bias[q_idx, kv_idx]", "mask": "seen[q_idx, kv_idx] | (kv_idx == q_idx)"}
    found = flashgen.attention(q, q, q, **given, bias=bias.astype(np.float16), seen=mask.astype(np.uint8))
    expected = flashgen.attention(q, q, q, **given, bias=bias.astype(np.float16).astype(np.float32), seen=mask != 0)
    np.testing.assert_array_equal(found, expected)
