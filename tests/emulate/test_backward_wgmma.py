"""The backward's kernels for Hopper on the emulator, under its race checker, beside the float64 reference."""

from dataclasses import replace

import numpy as np
import pytest

from flashgen.emulate import EmulationFault, emulate_backward
from flashgen.errors import PlanError
from flashgen.plan.backward import plan_backward
from flashgen.render import render
from flashgen.spec import Spec
from tests.emulate.test_backward import check, tensor
from tests.plan.agreement import arrays
from tests.plan.gradients import completed, given, judge

SHAPES = [(1, 4, 2, 170, 190), (2, 1, 1, 40, 300), (1, 2, 2, 300, 20)]  # more key tiles than blocks; fewer keys than queries: some see none


@pytest.mark.parametrize(
    ("dtype", "head_dim", "mask"),
    [("bfloat16", 128, "causal"), ("bfloat16", 128, "full"), ("float16", {"qk": 40, "v": 72}, "window(60, 20)")],
)
def test_beside_the_reference(dtype, head_dim, mask):
    """Either way to share dq among the warpgroups, by columns, or by queries where there are no more than 64 columns; and to add it."""
    spec = Spec(head_dim=head_dim, dtype=dtype, mask=mask, layout="bhsd" if dtype == "float16" else "bshd", backward=True)
    assert plan_backward(spec, "sm_90a").skeleton == "backward_sm90"
    for seed, shape in enumerate(SHAPES):
        check(spec, shape, seed=seed, arch="sm_90a")


FAULTS = {  # of what a step knows ahead, and of sums that copies add
    "no wait for q": ("causal", "    await(Q_FULL, of);\n", ""),
    "no wait for do": ("causal", "    await(DO_FULL, of);\n", ""),
    "another step": ("causal", "known_of(step + 1)", "known_of(step)"),
    "sums overwritten": ("full", "if (lane == 0) ptx::tma_store_wait_read();   //", "//"),
    "no fence": ("full", "dq[i + 3]);\n    ptx::async_proxy_fence();", "dq[i + 3]);"),
    "sums that nobody waits for": ("full", "    if (lane == 0) ptx::tma_store_wait();\n", ""),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_show(fault):
    mask, old, new = FAULTS[fault]
    spec = Spec(head_dim=128, dtype="bfloat16", mask=mask, backward=True)
    program = plan_backward(spec, "sm_90a")
    source = render(program)
    assert source.text.count(old) == 1
    with pytest.raises(EmulationFault, match=r"race|nobody waited for"):
        emulate_backward(program, replace(source, text=source.text.replace(old, new)), given(spec, 1, 1, 1, 200, 140))


def test_lengths_of_zero_and_one():
    """Without queries dk and dv are zeros, without keys dq; a query of one key has no gradient but that of v."""
    spec = Spec(head_dim=64, dtype="float16", mask="causal", backward=True)
    for q_len, kv_len in ((0, 5), (5, 0), (1, 1)):
        found = check(spec, (1, 1, 1, q_len, kv_len), arch="sm_90a")
        assert found["dv"].any() == (q_len * kv_len > 0)


def test_what_hidden_keys_hold_reaches_nothing():
    spec = Spec(head_dim=64, dtype="bfloat16", mask="causal & (kv_idx >= 40) & (kv_idx < 170)", backward=True)
    whole = completed(spec, *arrays(spec, 1, 2, 1, 150, 200, seed=3))
    k, v = whole.k.copy(), whole.v.copy()
    for x in (k, v):
        x[:, :40] = x[:, 170:] = np.nan
    program = plan_backward(spec, "sm_90a")
    found = emulate_backward(program, render(program), replace(whole, k=k, v=v))
    judge(spec, found, whole)
    assert not found["dk"][:, 170:].any()


SCORE = "cap * tanh(s / cap) + rows[q_idx] * keys[kv_idx] + slopes[h] * bias[b, q_idx, kv_idx]"
TENSORS = {
    "rows": {"shape": ["q_len"], "dtype": "float32", "grad": True},
    "keys": {"shape": ["kv_len"], "dtype": "float32", "grad": True},
    "slopes": {"shape": ["hq"], "dtype": "float32", "grad": True},
    "bias": {"shape": ["b", "q_len", "kv_len"], "dtype": "float32", "grad": True},
}


def test_gradients_of_tensors_and_params():
    """There is every kind of place: a row's, a key's, a head's, an element's; and of a param, beside a slope."""
    params = {"cap": {"default": 5.0, "grad": True}}
    spec = Spec(head_dim=64, dtype="bfloat16", mask="causal", score=SCORE, tensors=TENSORS, params=params, backward=True)
    values = {"rows": tensor(140), "keys": tensor(150, seed=1), "slopes": tensor(4, seed=2), "bias": tensor(1, 140, 150, seed=3)}
    assert plan_backward(spec, "sm_90a").skeleton == "backward_sm90"
    check(spec, (1, 4, 2, 140, 150), arch="sm_90a", **values)


@pytest.mark.parametrize(
    "spec",
    [
        Spec(head_dim=128, dtype="float16", mask="causal", score="cap * tanh(s / cap)", params={"cap": 5.0}, backward=True),
        Spec(head_dim=64, dtype="bfloat16", mask="causal", score="sigmoid(s - 2.0)", softmax="none", backward=True),
    ],
    ids=["softcap", "sigmoid"],
)
def test_slopes(spec):
    check(spec, (1, 2, 1, 150, 140), arch="sm_90a")


def test_other_arrays_are_served_by_mma_sync():
    for head_dim, copy_bytes, deterministic in ((64, 8, False), (192, 8, False), (64, 8, True)):
        spec = Spec(head_dim=head_dim, dtype="float16", backward=True, deterministic=deterministic)
        assert plan_backward(spec, "sm_90a", copy_bytes).skeleton == "backward_sm80"
    with pytest.raises(PlanError, match="multiples of 8"):
        plan_backward(Spec(head_dim=60, dtype="float16", backward=True), "sm_90a")


@pytest.mark.parametrize("head_dim", [16, 64, 72, 96, 128, {"qk": 128, "v": 64}])
def test_the_chosen_tile_is_the_largest_that_registers_hold(head_dim):
    program = plan_backward(Spec(head_dim=head_dim, dtype="bfloat16", backward=True), "sm_90a")
    larger = [r for r in program.decision.rejected if r.block_m > program.main.tile.block_m]
    assert all("registers" in r.reason or "shared memory" in r.reason for r in larger)
