"""The kernels of the other schedules under the race checker, against the float64 reference."""

import dataclasses
import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashgen.emulate import EmulationFault, emulate
from flashgen.plan import plan
from flashgen.render import render
from flashgen.spec import Spec
from tests.emulate.test_forward import ALIBI, SOFTCAP, call, check

SCHEDULES = {
    "standard": "standard",
    "three_pass": "three_pass",
    "two_pass": "two_pass",
    "each_step": {"normalize": "each_step"},
    "each_step_kv_outer": {"normalize": "each_step", "outer": "kv"},
}
VARIANTS = (
    {"head_dim": 64, "dtype": "float16", "mask": "causal", "outputs": ["o", "lse"]},
    {"head_dim": 40, "dtype": "float16", "mask": "prefix(70) | window(30, 10)", "layout": "bhsd", "outputs": ["o", "lse"], **SOFTCAP},
    {"head_dim": {"qk": 96, "v": 64}, "dtype": "bfloat16", "softmax": {"sink": "0.5"}, "block": {"m": 64, "n": 32}, **ALIBI},
)


@functools.cache
def planned(schedule, variant):
    chosen = plan(Spec(**VARIANTS[variant], schedule=SCHEDULES[schedule]), "sm_90a")
    return chosen, render(chosen)


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(data=st.data())
@settings(max_examples=settings().max_examples // 25)
def test_schedule(schedule, data):
    chosen, source = planned(schedule, data.draw(st.integers(0, len(VARIANTS) - 1), "variant"))
    (q, k, v), values = call(data, chosen.spec)
    found = emulate(chosen, source, q, k, v, values, seed=data.draw(st.integers(0, 20), "seed"))
    check(chosen.spec, found, q, k, v, **values)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("score", [np.inf, np.nan])
def test_infinite_and_undefined_scores_reach_the_result(schedule, score):
    chosen, source = planned(schedule, 0)
    q, k, v = (np.ones((1, n, 1, 64), np.float16) for n in (70, 70, 70))
    k[0, 3, 0, 5] = score
    found = emulate(chosen, source, q, k, v)
    assert np.isfinite(found["o"][0, :3]).all()
    assert np.isnan(found["o"][0, 3:]).all()
    assert np.isnan(found["lse"][0, 0, 3:]).all()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_arrays_of_any_strides(schedule):
    spec = Spec(head_dim=40, dtype="float16", mask="causal", outputs=["o", "lse"], schedule=SCHEDULES[schedule])
    chosen = plan(spec, "sm_80", 2)
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal((1, 40, 2, n)).astype(np.float16).swapaxes(1, 3) for n in (70, 130, 130))
    check(spec, emulate(chosen, render(chosen), q, k, v), q, k, v)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_documents(schedule):
    """Ranges of keys that small kernels find out before: the attention is the last of several."""
    tensors = {"ids": {"shape": ["b", "q_len"], "dtype": "int32"}}
    mask = "causal & (ids[b, kv_idx] == ids[b, q_idx])"
    spec = Spec(head_dim=32, dtype="float16", mask=mask, tensors=tensors, outputs=["o", "lse"], schedule=SCHEDULES[schedule])
    chosen, random = plan(spec, "sm_80"), np.random.default_rng(0)
    q, k, v = random.standard_normal((3, 2, 200, 2, 32)).astype(np.float16)
    ids = np.sort(random.integers(0, 4, (2, 200)), axis=1).astype(np.int32)
    check(spec, emulate(chosen, render(chosen), q, k, v, {"ids": ids}), q, k, v, ids=ids)


def of_standard(kv_len, block_n=64):
    """Kernels of full attention, and arrays of 30 queries."""
    spec = Spec(head_dim=64, dtype="float16", outputs=["o", "lse"], schedule="standard", block={"n": block_n})
    chosen, random = plan(spec, "sm_80"), np.random.default_rng(0)
    return chosen, render(chosen), *(random.standard_normal((1, n, 1, 64)).astype(np.float16) for n in (30, kv_len, kv_len))


@pytest.mark.parametrize(("kv_len", "block_n"), [(256, 64), (257, 64), (385, 96)])
def test_scores_in_runs_of_key_tiles(kv_len, block_n):
    """A block has 256 keys, or whole tiles of fewer, or the rest of a row."""
    chosen, source, q, k, v = of_standard(kv_len, block_n)
    check(chosen.spec, emulate(chosen, source, q, k, v), q, k, v)


@pytest.mark.parametrize(("kernel", "place"), [("Scores", "Q"), ("Output", "P[0]")])
def test_reports_name_what_a_kernel_of_standard_attention_holds(kernel, place):
    """Both have it from the first byte on. Without the barrier in the loop of one, warps read what others still copy."""
    chosen, source, q, k, v = of_standard(300)
    before, struct, after = source.text.partition(f"struct {kernel} ")
    text = before + struct + after.replace("__syncthreads();                                // the tile is here", "// the tile is here", 1)
    assert text != source.text
    with pytest.raises(EmulationFault) as caught:
        emulate(chosen, dataclasses.replace(source, text=text), q, k, v)
    assert f"reads `{place}+0x" in str(caught.value)
    assert f"in {kernel}::" in str(caught.value)
