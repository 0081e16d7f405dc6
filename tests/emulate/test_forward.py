"""Every kernel family as it ships, under the race checker, against the float64 reference."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashgen.emulate import EmulationFault, emulate
from flashgen.expr.meaning.reference import reference
from flashgen.plan import plan
from flashgen.plan.geometry import Sizes
from flashgen.render import render
from flashgen.spec import Spec, load

SOFTCAP = {"score": "softcap * tanh(s / softcap)", "params": {"softcap": 20.0}}
ALIBI = {"score": "s + slopes[h] * (kv_idx - q_idx)", "tensors": {"slopes": {"shape": ["hq"], "dtype": "float32"}}}
IDS = {"ids": {"shape": ["b", "kv_len"], "dtype": "int32"}}
SPECS: dict[str, list[Any]] = {
    "sm_90a": [
        {"head_dim": 64, "dtype": "bfloat16", "mask": "causal"},
        {"head_dim": 128, "dtype": "float16", "mask": "full", "block": {"m": 128, "n": 64}, "stages": 3},
        {"head_dim": 128, "dtype": "bfloat16", "mask": "causal & window(100, 0)", "layout": "bhsd", **SOFTCAP},
        {"head_dim": 72, "dtype": "bfloat16", "mask": "causal_top_left", "block": {"m": 64, "n": 80}, **ALIBI},
        {"head_dim": {"qk": 96, "v": 64}, "dtype": "float16", "mask": "prefix(70) | window(30, 10)", "schedule": {"rescale": {"lazy": 8}}},
        {"head_dim": 256, "dtype": "bfloat16", "mask": "causal", "schedule": {"rescale": "always"}},
        {"head_dim": {"qk": 80, "v": 264}, "dtype": "float16", "mask": "causal", "block": {"m": 64, "n": 32}},
        {"head_dim": 64, "dtype": "bfloat16", "mask": "document(ids) | prefix(20)", "block": {"m": 64, "n": 32}, "tensors": IDS},
    ],
    "sm_80": [
        {"head_dim": 64, "dtype": "bfloat16", "mask": "causal"},
        {"head_dim": 128, "dtype": "float16", "mask": "full", "block": {"m": 64, "n": 32}, "stages": 3},
        {"head_dim": {"qk": 288, "v": 272}, "dtype": "float16", "mask": "causal"},
        {"head_dim": 32, "dtype": "float16", "mask": "causal & ~document(ids) & (ids[b, kv_idx] < 3)", "tensors": IDS},
        {"head_dim": 40, "dtype": "bfloat16", "mask": "causal & window(100, 0)", "layout": "bhsd", "stages": 2, **SOFTCAP},
        {"head_dim": 32, "dtype": "float16", "mask": "causal", **SOFTCAP},
        {"head_dim": {"qk": 96, "v": 64}, "dtype": "float16", "mask": "prefix(70) | window(30, 10)", "stages": 1, **ALIBI},
    ],
}
SHIPPED = [path for path in sorted((Path(__file__).parents[2] / "specs").glob("*.yaml")) if path.stem != "float32"]  # see test_split.py
SPECS["sm_90a"] += [load(path) for path in SHIPPED[::2]]
SPECS["sm_80"] += [load(path) for path in SHIPPED[1::2]]
LSE_TOLERANCE = 2e-4  # natural log; scores are float32 sums of exact products


@functools.cache
def planned(arch, index):
    """Every second one as for short sequences: query tiles dealt by halves."""
    spec, length = SPECS[arch][index], 1024 if index % 2 else 8192
    chosen = plan(spec if isinstance(spec, Spec) else Spec(**spec, outputs=["o", "lse"]), arch, length=length)
    return chosen, render(chosen)


def call(data, spec):
    """Arrays and values of a call, small."""
    batch, kv_heads = data.draw(st.integers(1, 2), "batch"), data.draw(st.integers(1, 2), "kv_heads")
    group = spec.group or data.draw(st.integers(1, 3), "group")
    q_len = data.draw(st.one_of(st.integers(1, 300), st.sampled_from([1, 64, 128, 256])), "q_len")
    kv_len = data.draw(st.one_of(st.integers(0, 400), st.sampled_from([0, 1, 64, 128, 256])), "kv_len")
    rng = np.random.default_rng(data.draw(st.integers(0, 99), "values"))
    heads, d = kv_heads * group, spec.head_dim
    shapes = ((batch, q_len, heads, d.qk), (batch, kv_len, kv_heads, d.qk), (batch, kv_len, kv_heads, d.v))
    arrays = [rng.standard_normal(shape).astype(spec.element.numpy) for shape in shapes]
    arrays = [np.ascontiguousarray(x.swapaxes(1, 2)) if spec.layout == "bhsd" else x for x in arrays]
    sizes = Sizes(batch, q_len, kv_len, heads, kv_heads)
    return arrays, {t.name: tensor(rng, t, sizes.shape(t)) for t in spec.tensors}


def tensor(rng, t, shape):
    """Numbers up to 0.1; integers, as of documents packed one after the other, or in any order."""
    if t.dtype != "int32":
        return rng.random(shape).astype(np.float32) / 10
    ids = rng.integers(0, 4, shape).astype(np.int32)
    return np.sort(ids, axis=-1) if rng.random() < 0.8 else ids


def check(spec, found, q, k, v, **values):
    """o and lse beside float64. What is rounded to the dtype, each by a unit of roundoff at most and of either sign: the weights p of a
    row, which together move it by the norm of p |v| at most in the mean square, and o."""
    o, lse = reference(spec, q, k, v, **values)
    off, bound = (np.linalg.norm(x, axis=-1) for x in (found["o"].astype(np.float64) - o, o))
    bound = spec.element.rounding * (bound + 1.5 * _spread(spec, q, k, v, **values)) + 1e-6
    assert (off <= bound).all(), f"o is off by {np.nanmax(off / bound):.1f} times the bound, first at {np.argwhere(~(off <= bound))[0]}"
    if "lse" not in spec.outputs:
        return
    assert (np.isneginf(found["lse"]) == np.isneginf(lse)).all()
    seen = np.isfinite(lse)
    assert (np.abs(found["lse"][seen] - lse[seen]) <= LSE_TOLERANCE * (1 + np.abs(lse[seen]))).all()


def _spread(spec, q, k, v, **values):
    """The norm of p |v| of each row; the weights p are what comes out where v is the identity."""
    q, k, v = (x.swapaxes(1, 2) if spec.layout == "bshd" else x for x in (q, k, v))
    heads_first = Spec(**(spec.to_json() | {"layout": "bhsd"}))
    p, _ = reference(heads_first, q, k, np.broadcast_to(np.eye(k.shape[2]), (*k.shape[:3], k.shape[2])), **values)
    lengths = np.linalg.norm(v.astype(np.float64), axis=-1).repeat(q.shape[1] // k.shape[1], axis=1)
    spread = np.linalg.norm(p * lengths[:, :, None], axis=-1)
    return spread.swapaxes(1, 2) if spec.layout == "bshd" else spread


@pytest.mark.parametrize("arch", SPECS)
@given(data=st.data())
@settings(max_examples=settings().max_examples * 2 // 5)
def test_forward(arch, data):
    chosen, source = planned(arch, data.draw(st.integers(0, len(SPECS[arch]) - 1), "spec"))
    (q, k, v), values = call(data, chosen.spec)
    seed, blocks = data.draw(st.integers(0, 20), "seed"), data.draw(st.integers(1, 4), "blocks")
    found = emulate(chosen, source, q, k, v, values, seed=seed, blocks=blocks)
    check(chosen.spec, found, q, k, v, **values)


def faulty(old, new, arch="sm_90a", index=0, q_len=200, kv_len=300, blocks=3):
    """Returns what is found in a kernel whose text was changed."""
    chosen, source = planned(arch, index)
    assert old in source.text, source.text
    rng, d = np.random.default_rng(0), chosen.spec.head_dim.qk
    q, k, v = (rng.standard_normal((1, n, 2, d)).astype(chosen.dtype.numpy) for n in (q_len, kv_len, kv_len))
    with pytest.raises(EmulationFault) as caught:
        emulate(chosen, dataclasses.replace(source, text=source.text.replace(old, new)), q, k, v, blocks=blocks)
    return str(caught.value)


def test_reports_use_the_names_of_the_memory_map():
    report = faulty("await(V_FULL, at);", "")
    assert "reads `V[" in report
    assert "written by the TMA load of `V full[" in report
    assert "Attend::start_output" in report
    assert "the other side, attention.cu:" in report


def test_rows_past_the_last_are_not_written():
    assert "plain access of global memory at `lse`+0x640, outside its 1600 bytes" in faulty(
        "row < sequence.q_len())", "row < sequence.q_len() + 1)"
    )


def test_rows_that_nobody_writes_are_found():
    assert "were never written" in faulty("row < sequence.q_len())", "row < sequence.q_len() - 1)")


def test_the_counter_is_left_zero():
    for index in (0, 1):
        assert "leaves its counter at [" in faulty("++i) counter[i] = 0;", "++i) counter[1] = 0;", index=index)


def test_one_half_takes_what_the_other_has_left():
    assert "were never written" in faulty("half ^= 1;", "", index=1, blocks=1)
