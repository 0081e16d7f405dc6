"""`attn.backward`: gradients in the order that it tells, of any backend and layout; and what it refuses."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import flashgen
from flashgen.cli.build import build
from flashgen.cli.check_backward import runner
from flashgen.errors import CallError, PlanError
from flashgen.runtime import autograd
from flashgen.spec import Spec
from tests.plan import gradients

SPEC = Spec(
    name="bent",
    head_dim={"qk": 16, "v": 8},
    dtype="float16",
    score="c * tanh(s / c) + x[h] * 0.1 + y[h]",
    mask="causal",
    params={"c": {"default": 5.0, "grad": True}, "n": 2},
    tensors={name: {"shape": ["hq"], "dtype": "float32", "grad": name == "x"} for name in ("y", "x")},
    backward=True,
    scale="n * 0.125",
)
VALUES = {"x": np.float32([0.5, -1.0]), "y": np.float32([0.1, 0.2])}
SHAPE = (1, 2, 1, 20, 24)


def arrays(spec=SPEC, shape=SHAPE, **values):
    return gradients.given(spec, *shape, dlse=True, **values)


def called(attention, given, **values):
    return attention.backward(given.do, given.q, given.k, given.v, given.o, given.lse, given.dlse, **values)


@pytest.mark.parametrize(("backend", "arch"), [("interpreter", None), ("emulate", "sm_80"), ("emulate", "sm_90a")])
def test_gradients_of_q_k_v_then_of_tensors_then_of_params(backend, arch):
    given = arrays(**VALUES)
    found = called(flashgen.compile(SPEC, arch, backend), given, **VALUES)
    assert [x.dtype.name for x in found] == ["float16"] * 3 + ["float32"] * 2
    assert [x.shape for x in found] == [given.q.shape, given.k.shape, given.v.shape, (2,), ()]
    gradients.judge(SPEC, dict(zip(("dq", "dk", "dv", "x", "c"), found, strict=True)), given, **VALUES)


def test_another_layout_and_any_strides():
    spec = Spec(head_dim=16, dtype="bfloat16", layout="bhsd", mask="causal", backward=True)
    given = arrays(spec)
    views = {name: np.asfortranarray(getattr(given, name)) for name in ("q", "k", "v", "o", "do")}
    found = called(flashgen.compile(spec, "host"), type(given)(lse=given.lse, dlse=given.dlse, **views))
    gradients.judge(spec, dict(zip(("dq", "dk", "dv"), found, strict=True)), given)


def test_of_what_the_forward_gives():
    """The gradient of the sum of o by v is the sum of the weights of a key."""
    attention = flashgen.compile({"head_dim": 8, "dtype": "float16", "mask": "causal", "backward": True}, "host")
    q = k = v = np.ones((1, 2, 1, 8), np.float16)
    o, lse = attention(q, k, v)
    dq, dk, dv = attention.backward(np.ones_like(o), q, k, v, o, lse)
    assert dv[0, :, 0, 0].tolist() == [1.5, 0.5]
    assert not dq.any()
    assert not dk.any()


@pytest.mark.parametrize("shape", [(0, 2, 1, 5, 5), (1, 2, 1, 0, 5), (1, 2, 1, 5, 0)])
def test_lengths_of_zero(shape):
    given = arrays(shape=shape, **VALUES)
    found = called(flashgen.compile(SPEC, "host"), given, **VALUES)
    assert [x.shape for x in found[:3]] == [given.q.shape, given.k.shape, given.v.shape]
    assert not any(x.any() for x in found)


def test_without_a_softmax_there_is_no_lse():
    spec = Spec(head_dim=8, dtype="float16", score="sigmoid(s)", softmax="none", backward=True)
    attention, given = flashgen.compile(spec, "host"), arrays(spec)
    found = attention.backward(given.do, given.q, given.k, given.v, given.o, None)
    gradients.judge(spec, dict(zip(("dq", "dk", "dv"), found, strict=True)), given)
    with pytest.raises(CallError, match="lse is given, and softmax: none has no lse: pass None"):
        attention.backward(given.do, given.q, given.k, given.v, given.o, np.zeros(SHAPE[:2] + SHAPE[3:4], np.float32))


def test_a_kernel_without_one_names_the_line():
    attention = flashgen.compile({"name": "plain", "head_dim": 8, "dtype": "float16"}, "host")
    with pytest.raises(CallError, match="plain has no backward: add the line backward: true to its spec"):
        attention.backward(*[np.ones((1, 2, 1, 8), np.float16)] * 6)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("do", lambda x: x[:, 1:], r"do has shape \[1, 19, 2, 8\]: expected \[1, 20, 2, 8\]"),
        ("o", lambda x: x.astype(np.float32), "o is float32: expected float16. Cast it"),
        ("lse", lambda x: x[..., :-1], r"lse has shape \[1, 2, 19\]: expected \[1, 2, 20\]"),
        ("lse", lambda x: x.astype(np.float64), "lse is float64: expected float32"),
        ("lse", lambda _: None, "lse is None: expected what the forward gave"),
        ("dlse", lambda x: np.asfortranarray(np.repeat(x, 2, 1))[:, ::2], "dlse has strides .*: it has to be contiguous"),
        ("k", lambda x: x[..., :-1], r"k has shape \[1, 24, 1, 15\]"),
        ("q", lambda _: 3, "q is a int, not an array"),
    ],
)
def test_arrays_that_do_not_fit(name, change, message):
    given = arrays(**VALUES)
    parts = {each: getattr(given, each) for each in ("do", "q", "k", "v", "o", "lse", "dlse")}
    with pytest.raises(CallError, match=message):
        flashgen.compile(SPEC, "host").backward(**parts | {name: change(parts[name])}, **VALUES)


def test_values_that_do_not_fit():
    given, attention = arrays(**VALUES), flashgen.compile(SPEC, "host")
    with pytest.raises(CallError, match="the tensor y"):
        called(attention, given, x=VALUES["x"])
    with pytest.raises(CallError, match="cap"):
        called(attention, given, **VALUES, cap=3.0)
    with pytest.raises(CallError, match="c is 'big': expected a number"):
        called(attention, given, **VALUES, c="big")


def test_lengths_of_a_call_that_pytorch_differentiates_are_looked_at(monkeypatch):
    monkeypatch.setattr(autograd, "wanted", lambda *_: True)
    monkeypatch.setattr(autograd, "apply", lambda _, run, qkv, values: run(*qkv, dict(values)))
    attention = flashgen.compile({"head_dim": 8, "dtype": "float16", "layout": "thd", "backward": True}, "host")
    q, lengths = np.ones((5, 1, 8), np.float16), np.array([0, 4], np.int32)
    attention(q, q, q, cu_seqlens_q=lengths, cu_seqlens_k=lengths)
    with pytest.raises(CallError, match="cu_seqlens_q begins with 0 and ends with 4: expected 0 and 5"):
        attention(q, q, q, cu_seqlens_q=lengths, cu_seqlens_k=lengths, check=True)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"dtype": "float32"}, "dtype is float32: gradients of it have no kernel"),
        ({"head_dim": 272}, "head_dim qk is 272: a backward on sm_.* takes multiples of 8 from 8 to 256"),
        ({"blocks": {"m": 16, "n": 8, "lists": "idx"}}, "no kernel serves backward attention .* blocks of lists have 8 keys"),
    ],
)
def test_gradients_that_no_kernel_has_are_refused_where_a_spec_is_compiled(arch, keys, says):
    spec = Spec(**{"head_dim": 16, "dtype": "float16", "backward": True} | keys)
    with pytest.raises(PlanError, match=says):
        flashgen.compile(spec, arch, "emulate")
    with pytest.raises(PlanError, match=says):
        build(spec, [arch], Path("nowhere"))
    with pytest.raises(PlanError, match=says):
        runner(spec, arch, emulated=True)
    flashgen.compile(spec, "host")


@pytest.mark.parametrize(("dtype", "out_dtype"), [("float16", "float32"), ("bfloat16", "float16"), ("float32", "bfloat16")])
def test_o_of_another_dtype(dtype, out_dtype):
    spec = Spec(head_dim=16, dtype=dtype, out_dtype=out_dtype, mask="causal", backward=True)
    attention, given = flashgen.compile(spec, "host"), arrays(spec)
    dq, dk, dv = called(attention, given)
    gradients.judge(spec, {"dq": dq, "dk": dk, "dv": dv}, given)
    with pytest.raises(CallError, match=f"do is {dtype}: expected {out_dtype}. Cast it"):
        called(attention, replace(given, do=given.do.astype(spec.element.numpy)))
    with pytest.raises(CallError, match=f"o is {dtype}: expected {out_dtype}. Cast it"):
        called(attention, replace(given, o=given.o.astype(spec.element.numpy)))
