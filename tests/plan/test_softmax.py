"""Softmax variants: one more term in the sum, and no sum at all; in every schedule, against the reference."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashgen.errors import PlanError, SpecError
from flashgen.expr import lower
from flashgen.expr.meaning.reference import reference
from flashgen.plan import plan
from flashgen.render import render
from flashgen.spec import Softmax, Spec
from flashgen.theory.schedule import schedule_text
from tests.plan.agreement import arrays, error, run

SINKS = {"sinks": {"shape": ["hq"], "dtype": "float32"}}
SCHEDULES = (
    "auto",
    "standard",
    "three_pass",
    "two_pass",
    {"normalize": "each_step"},
    {"normalize": "each_step", "outer": "kv"},
    {"rescale": "lazy"},
)
WEIGHTS = ("sigmoid(s - log(kv_len))", "max(s, 0.0) * max(s, 0.0)", "s")


@given(
    st.sampled_from(SCHEDULES), st.sampled_from(["full", "causal", "window(9, 0)"]), st.sampled_from(["float32", "float16", "bfloat16"]),
    st.integers(0, 200), st.integers(0, 200), st.floats(-30, 30),
)  # fmt: skip
def test_a_sink_is_one_more_term(schedule, mask, dtype, q_len, kv_len, shift):
    spec = Spec(head_dim=16, dtype=dtype, mask=mask, softmax={"sink": "sinks[h]"}, tensors=SINKS, schedule=schedule, outputs=["o", "lse"])
    q, k, v = arrays(spec, 2, 4, 2, q_len, kv_len)
    sinks = np.random.default_rng().standard_normal(4).astype(np.float32) + np.float32(shift)
    o, lse = run(spec, q, k, v, sinks=sinks)
    want_o, want_lse = reference(spec, q, k, v, sinks=sinks)
    assert error(o, want_o) <= 2 * spec.element.rounding * np.abs(v.astype(np.float32)).max(initial=0) + 1e-5  # of p and of o
    assert error(lse, want_lse) <= 1e-3


def test_a_row_without_keys_has_the_sink_alone():
    spec = Spec(head_dim=8, dtype="float32", mask="kv_idx < 0", softmax="off_by_one")
    q, k, v = arrays(spec, 1, 1, 1, 3, 5)
    for o, lse in (run(spec, q, k, v), reference(spec, q, k, v)):
        assert (o == 0).all()
        assert (lse == 0).all()


@given(st.sampled_from(WEIGHTS), st.sampled_from(["full", "causal", "prefix(7)"]), st.integers(0, 200), st.integers(0, 200))
def test_weights_need_no_sum(score, mask, q_len, kv_len):
    spec = Spec(head_dim=16, dtype="float32", score=score, mask=mask, softmax="none")
    q, k, v = arrays(spec, 1, 2, 1, q_len, kv_len)
    o, lse = run(spec, q, k, v)
    want_o, want_lse = reference(spec, q, k, v)
    assert np.linalg.norm(o - want_o) <= 2e-6 * np.linalg.norm(want_o)
    assert (lse == 0).all()
    assert (want_lse == 0).all()


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_weights_keep_no_state_in_the_text(arch):
    text = render(plan(Spec(head_dim=64, dtype="float16", score="max(s, 0.0)", softmax="none"), arch)).text
    assert "ptx::exp2" not in text
    assert "row_max" not in text


def test_forms():
    assert Spec(head_dim=8, dtype="float16").softmax == Softmax()
    assert Spec(head_dim=8, dtype="float16", softmax="off_by_one").softmax == Softmax(sink="0")
    for given_form in ("softmax", "off_by_one", "none", {"sink": "2.5"}):
        spec = Spec(head_dim=8, dtype="float16", softmax=given_form)
        assert Spec(**spec.to_json()) == spec


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"softmax": "of_by_one"}, "did you mean 'off_by_one'"),
        ({"softmax": {"snk": "0"}}, "did you mean 'sink'"),
        ({"softmax": {"sink": "sinks[h]"}}, "sinks"),
        ({"softmax": {"sink": "q_idx * 1.0"}}, "q_idx"),
        ({"softmax": {"sink": "s"}}, "'s'"),
        ({"softmax": "none", "outputs": ["o", "lse"]}, "has neither"),
    ],
)
def test_mistakes(keys, message):
    with pytest.raises(SpecError, match=message.replace("[", r"\[")):
        lower(Spec(head_dim=8, dtype="float16", **keys))


def test_weights_have_no_schedule():
    with pytest.raises(PlanError, match="softmax: none has neither"):
        plan(Spec(head_dim=64, dtype="float16", softmax="none", schedule={"rescale": "lazy"}))
    assert "no maximum" in schedule_text(plan(Spec(head_dim=64, dtype="float16", softmax="none")).softmax)
