"""The backward by two blocks of a cluster on the emulator, under its race checker, beside the float64 reference."""

from dataclasses import replace

import numpy as np
import pytest

from flashgen.emulate import emulate_backward
from flashgen.plan.backward import plan_backward
from flashgen.render import render
from flashgen.spec import Spec
from tests.emulate.test_backward import check, tensor
from tests.emulate.test_backward_wgmma import TENSORS
from tests.plan.agreement import arrays
from tests.plan.gradients import completed, judge

CAUSAL = Spec(head_dim=256, dtype="bfloat16", mask="causal", backward=True)


@pytest.mark.parametrize(("shape", "seed"), [((1, 4, 2, 130, 150), 0), ((2, 1, 1, 20, 300), 1), ((1, 2, 1, 330, 140), 7)])
def test_beside_the_reference(shape, seed):
    """Heads that share keys; key tiles of one step and of none; queries that see no key, more of them than the ring has places."""
    assert plan_backward(CAUSAL, "sm_90a").skeleton == "backward_sm90_pair"
    check(CAUSAL, shape, seed=seed, arch="sm_90a")


@pytest.mark.parametrize(
    ("head_dim", "dtype", "mask"),
    [({"qk": 192, "v": 128}, "bfloat16", "causal"), ({"qk": 40, "v": 136}, "float16", "window(60, 20)")],
)
def test_columns_of_dq_that_do_not_exist(head_dim, dtype, mask):
    """Three of four warpgroups, or one, have columns of q; k and v are not as wide."""
    spec = Spec(head_dim=head_dim, dtype=dtype, mask=mask, layout="bhsd" if dtype == "float16" else "bshd", backward=True)
    assert plan_backward(spec, "sm_90a").skeleton == "backward_sm90_pair"
    check(spec, (1, 4, 2, 130, 150), seed=3, arch="sm_90a")


@pytest.mark.parametrize(("q_len", "kv_len"), [(0, 5), (5, 0), (1, 1)])
def test_lengths_of_zero_and_one(q_len, kv_len):
    """Without queries dk and dv are zeros, without keys dq; a query of one key has no gradient but that of v."""
    found = check(CAUSAL, (1, 1, 1, q_len, kv_len), arch="sm_90a")
    assert found["dv"].any() == (q_len * kv_len > 0)


def test_what_hidden_keys_hold_reaches_nothing():
    """In k, which both blocks have a part of, and in v."""
    spec = Spec(head_dim={"qk": 192, "v": 128}, dtype="bfloat16", mask="causal & (kv_idx >= 40) & (kv_idx < 170)", backward=True)
    given = completed(spec, *arrays(spec, 1, 2, 1, 150, 200, seed=3))
    k, v = given.k.copy(), given.v.copy()
    for x in (k, v):
        x[:, :40] = x[:, 170:] = np.nan
    program = plan_backward(spec, "sm_90a")
    found = emulate_backward(program, render(program), replace(given, k=k, v=v))
    judge(spec, found, given)
    assert not found["dk"][:, 170:].any()


@pytest.mark.parametrize(
    "spec",
    [
        Spec(
            head_dim=256,
            dtype="float16",
            mask="causal",
            score="cap * tanh(s / cap)",
            params={"cap": 5.0},
            softmax={"sink": "sinks[h]"},
            tensors={"sinks": {"shape": ["hq"], "dtype": "float32", "grad": True}},
            backward=True,
        ),
        Spec(head_dim=136, dtype="bfloat16", mask="causal", score="sigmoid(s - 2.0)", softmax="none", backward=True),
    ],
    ids=["softcap", "sigmoid"],
)
def test_slopes_and_a_sink(spec):
    """The other block gets what is the weight times the slope; delta has the gradient of a sink."""
    assert plan_backward(spec, "sm_90a").skeleton == "backward_sm90_pair"
    check(spec, (1, 2, 1, 150, 140), arch="sm_90a", **{t.name: tensor(2) for t in spec.tensors})


@pytest.mark.parametrize("head_dim", [136, 192, 256, {"qk": 192, "v": 128}, {"qk": 64, "v": 256}])
def test_the_chosen_tile_is_the_largest_that_registers_hold(head_dim):
    program = plan_backward(Spec(head_dim=head_dim, dtype="bfloat16", backward=True), "sm_90a")
    larger = [r for r in program.decision.rejected if r.block_m > program.main.tile.block_m]
    assert all("registers" in r.reason or "shared memory" in r.reason for r in larger)


def test_clusters_are_told_and_launched():
    program = plan_backward(CAUSAL, "sm_90a")
    kernel = program.by_entry["backward"]
    assert kernel.grid.cluster == 2
    assert kernel.grid.blocks[0] == 2
    assert "__cluster_dims__(2, 1, 1)" in render(program).text


SUMS = "s + rows[q_idx] * keys[kv_idx] + slopes[h] * bias[b, q_idx, kv_idx]"


def test_gradients_of_tensors():
    """There is every kind of place: a row's, a key's, a head's, an element's; what is added to q k^T needs no scores."""
    spec = Spec(head_dim=136, dtype="bfloat16", mask="causal", score=SUMS, tensors=TENSORS, backward=True)
    assert plan_backward(spec, "sm_90a").skeleton == "backward_sm90_pair"
    values = {"rows": tensor(100), "keys": tensor(140, seed=1), "slopes": tensor(4, seed=2), "bias": tensor(1, 100, 140, seed=3)}
    check(spec, (1, 4, 2, 100, 140), arch="sm_90a", **values)


def test_who_serves_what_it_does_not():
    asked = {"bias": {"shape": ["hq", "kv_len"], "dtype": "float32", "grad": True}}
    others = ({"score": "s * bias[h, kv_idx]", "tensors": asked}, {"head_dim": 128})
    served = [plan_backward(Spec(**{"head_dim": 256, "dtype": "float16", "backward": True} | keys), "sm_90a").skeleton for keys in others]
    assert served == ["backward_sm80", "backward_sm90"]
    told = plan_backward(Spec(head_dim=256, dtype="float16", backward=True, score="s * bias[h, kv_idx]", tensors=asked), "sm_90a")
    assert any("the gradient of bias depends on q k^T" in reason for _, reason in told.decision.reasons)
