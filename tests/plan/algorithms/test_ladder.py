"""The kernels that a pinned schedule gets."""

import pytest

from flashgen.errors import PlanError
from flashgen.plan import plan
from flashgen.spec import Spec
from flashgen.theory.schedule import schedules

SKELETONS = {
    "standard": "standard_sm80",
    "three_pass": "passes_sm80",
    "two_pass": "passes_sm80",
    "each_step": "passes_sm80",
    "each_step_kv_outer": "keys_outer_sm80",
    "one_pass": "forward_sm90",
    "lazy": "forward_sm90",
}


def pinned(name):
    softmax = schedules()[name]
    if softmax.materialize:
        return "standard"
    rescale = {"lazy": softmax.threshold} if softmax.threshold else "always"
    return {"passes": softmax.passes, "normalize": softmax.normalize, "outer": softmax.outer, "rescale": rescale}


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90a", "sm_120"])
@pytest.mark.parametrize("name", schedules())
def test_every_schedule_has_a_kernel_everywhere(name, arch):
    for head_dim in (8, 64, 128, 256):
        chosen = plan(Spec(head_dim=head_dim, dtype="float16", mask="causal", schedule=pinned(name)), arch)
        wanted = SKELETONS[name] if arch == "sm_90a" else SKELETONS[name].replace("forward_sm90", "forward_sm80")
        assert (chosen.skeleton, chosen.softmax) == (wanted, schedules()[name]), (head_dim, chosen.softmax)


def test_only_standard_attention_hands_scores_from_kernel_to_kernel():
    scratch = {name: plan(Spec(head_dim=64, dtype="float16", schedule=pinned(name)), "sm_90a").scratch for name in SKELETONS}
    assert [s.name for s in scratch.pop("standard")] == ["scratch s", "scratch p"]
    assert [s.name for s in scratch.pop("each_step_kv_outer")] == ["state o", "state m", "state l"]
    assert not any(scratch.values())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"schedule": "three_pass", "stages": 1}, "stages is 1: 2 to 5 with this schedule"),
        ({"schedule": "standard", "stages": 1}, "stages is 1: 2 to 5 with this schedule"),
        ({"schedule": {"normalize": "each_step", "outer": "kv"}, "stages": 2}, "stages is 2: 1 with outer: kv"),
        ({"schedule": {"normalize": "each_step"}, "block": {"m": 128, "n": 64}, "warps": 4}, "160 can be held while o is divided"),
    ],
)
def test_what_a_schedule_does_not_take(given, said):
    with pytest.raises(PlanError) as caught:
        plan(Spec(head_dim=64, dtype="float16", **given), "sm_80")
    assert said in str(caught.value)
    assert "The nearest legal choice" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "order", "rescale"),
    [
        ("standard", "meets all key tiles", "nothing is rescaled"),
        ("three_pass", "the longest go first", "nothing is rescaled"),
        ("two_pass", "the longest go first", "o never"),
        ("each_step_kv_outer", "pass by", "o is rescaled at every key tile"),
        ("lazy", "the longest go first", "only where a maximum grew by more than 2^8"),
    ],
)
def test_reasons_are_those_of_the_schedule(name, order, rescale):
    reasons = dict(plan(Spec(head_dim=64, dtype="float16", mask="causal", schedule=pinned(name)), "sm_80").decision.reasons)
    assert order in reasons["order"]
    assert rescale in reasons["rescale"]
