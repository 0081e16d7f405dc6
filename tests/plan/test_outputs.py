"""The outputs beside o and lse: the greatest score of each row, and of each head; the entropy of a row's weights."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashgen.errors import PlanError, SpecError
from flashgen.expr.meaning.reference import reference, reference_outputs
from flashgen.interpret import interpret
from flashgen.plan import plan
from flashgen.spec import Spec
from tests.plan.agreement import SCHEDULES, arrays, error

ALL = ["o", "lse", "max", "max_logit", "entropy"]
SINKS = {"sinks": {"shape": ["hq"], "dtype": "float32"}}


@pytest.mark.parametrize("schedule", [*(s for name, s in SCHEDULES.items() if "lazy" not in name), {"rescale": "lazy"}])
@pytest.mark.parametrize("softmax", [None, "off_by_one", {"sink": "sinks[h]"}])
def test_maxima_are_of_scores(schedule, softmax):
    """A sink is no score."""
    tensors = SINKS if isinstance(softmax, dict) else {}
    spec = Spec(head_dim=16, dtype="float16", mask="causal", score="3 * tanh(s)", outputs=ALL, softmax=softmax, tensors=tensors,
                schedule=schedule)  # fmt: skip
    q, k, v = arrays(spec, 2, 4, 2, 140, 150)
    values = {"sinks": np.float32([-1, 5, 0, 9])} if tensors else {}
    found, top = interpret(plan(spec, "host"), q, k, v, values), reference_outputs(spec, q, k, v, **values)["max"]
    assert error(found["max"], top) < 1e-4
    assert error(found["max_logit"], top.max((0, 2))) < 1e-4
    assert error(found["lse"], reference(spec, q, k, v, **values)[1]) < 1e-3


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("softmax", [None, {"sink": "sinks[h]"}])
def test_entropy_is_of_the_weights_of_keys(schedule, softmax):
    """As NumPy has it: -(p * log(p)).sum(-1), whether or not p sum up to 1."""
    spec = Spec(head_dim=16, dtype="float32", mask="causal", score="9 * s", outputs=["o", "entropy"], softmax=softmax,
                tensors=SINKS if softmax else {}, schedule=SCHEDULES[schedule], block={"m": 32, "n": 16})  # fmt: skip
    q, k, v = arrays(spec, 1, 4, 2, 70, 90)
    values = {"sinks": np.float32([-1, 5, 90, -np.inf])} if softmax else {}
    found = interpret(plan(spec, "host"), q, k, v, values)["entropy"]
    s = np.where(
        np.arange(90) <= np.arange(70)[:, None] + 20, 9 / 4 * np.einsum("qhd,khd->hqk", q[0], np.repeat(k[0], 2, 1), dtype=float), -np.inf
    )
    sink = np.float64(values.get("sinks", [-np.inf] * 4))[:, None, None]
    top = np.maximum(s.max(-1, keepdims=True), sink)
    p = np.exp(s - top) / (np.exp(s - top).sum(-1, keepdims=True) + np.exp(sink - top))
    assert error(found[0], -np.where(p == 0, 0, p * np.log(np.where(p == 0, 1, p))).sum(-1)) < 1e-5
    assert (found >= 0).all()


@settings(max_examples=20)
@given(st.integers(0, 40), st.integers(0, 40), st.sampled_from(["causal", "full", "full & ~full", "window(3, 0)"]))
def test_rows_without_keys_have_minus_infinity(q_len, kv_len, mask):
    spec = Spec(head_dim=8, dtype="float32", mask=mask, outputs=ALL, block={"m": 16, "n": 16})
    q, k, v = arrays(spec, 1, 2, 1, q_len, kv_len)
    found, top = interpret(plan(spec, "host"), q, k, v), reference_outputs(spec, q, k, v)["max"]
    assert error(found["max"], top) < 1e-5
    assert found["max_logit"].shape == (2,)
    assert error(found["max_logit"], top.max((0, 2), initial=-np.inf)) < 1e-5
    assert error(found["entropy"], reference_outputs(spec, q, k, v)["entropy"]) < 1e-5
    assert not found["entropy"][np.isneginf(found["lse"])].any()


def test_nan_counts_as_no_score():
    spec = Spec(head_dim=8, dtype="float32", score="log(s)", outputs=ALL, scale=1)
    q = k = np.float32([[1] + [0] * 7, [-1] + [0] * 7])[None, :, None]
    found, top = interpret(plan(spec, "host"), q, k, k), reference_outputs(spec, q, k, k)["max"]
    assert (found["max"] == top).all()
    assert top.tolist() == [[[0, 0]]]
    assert np.isnan(found["lse"]).all()
    assert np.isnan(found["entropy"]).all()


def test_the_reference_may_not_stay_behind_a_maximum_that_is_asked_for():
    spec = {"head_dim": 128, "dtype": "bfloat16"}
    assert plan(Spec(**spec), "sm_90a").softmax.threshold > 0
    assert plan(Spec(**spec, outputs=["o", "max"]), "sm_90a").softmax.threshold == 0
    with pytest.raises(PlanError, match="lazy: 0"):
        plan(Spec(**spec, outputs=["o", "max_logit"], schedule={"rescale": {"lazy": 4}}), "sm_90a")


@pytest.mark.parametrize("name", ALL[1:])
def test_weights_without_a_sum_have_no_other_outputs(name):
    with pytest.raises(SpecError, match=f"{name} is of a row's maximum and sum"):
        Spec(head_dim=16, dtype="float16", softmax="none", outputs=["o", name])


def test_the_kernel_of_heads_runs_last():
    launch = plan(Spec(head_dim=64, dtype="bfloat16", outputs=["o", "max_logit"]), "sm_90a")
    assert [kernel.entry for kernel in launch.kernels] == ["forward", "head_maximum"]
    assert [scratch.name for scratch in launch.scratch] == ["max"]
    both = plan(Spec(head_dim=64, dtype="bfloat16", outputs=["o", "max", "max_logit"]), "sm_90a")
    assert both.scratch == ()


def test_keys_in_shares_give_no_entropy():
    keys = {"head_dim": 64, "dtype": "bfloat16", "outputs": ["o", "entropy"]}
    assert plan(Spec(**keys), "sm_90a").attention.dealing.shares is None
    with pytest.raises(PlanError, match="outputs has entropy, which is made of a sum over all keys of a row"):
        plan(Spec(**keys, split=4), "sm_90a")
