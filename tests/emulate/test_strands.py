"""Any spec whose keys are shared: strands beside each other and in turn, under the race checker, are right and have the same bits."""

from hypothesis import given, reject, settings
from hypothesis import strategies as st

from flashgen.emulate import emulate
from flashgen.errors import PlanError
from flashgen.plan import plan
from flashgen.plan.shares import Demand, refusal
from flashgen.render import render
from flashgen.spec import Spec
from tests.emulate.test_shares import with_small_shares
from tests.plan.agreement import judge
from tests.plan.any_spec import LOOSE, calls, specs


def free(spec):
    """True if shares of few rows may have strands."""
    pinned = spec.block.m or spec.block.n or spec.stages or spec.warps or isinstance(spec.split, int)
    return not pinned and not spec.geometry.packed and refusal(spec) is None


@settings(max_examples=8)
@given(
    specs(step=8, dtypes=("float16", "bfloat16")).filter(free), st.sampled_from([2, 4, 8]), st.sampled_from(["sm_90a", "sm_80"]), st.data()
)
def test_strands_have_the_same_bits_beside_each_other_and_in_turn(spec, strands, arch, data):
    (q, k, v), values = data.draw(calls(spec, 200))
    found = []
    for in_turn in (False, True):
        try:
            chosen = with_small_shares(plan(spec, arch, demand=Demand(shared=True, rows=16, strands=strands, in_turn=in_turn)))
        except PlanError:
            reject()  # too wide for so many warps
        found.append(emulate(chosen, render(chosen), q, k, v, values, seed=data.draw(st.integers(0, 9))))
        judge(spec, found[-1], q, k, v, LOOSE, **values)
    assert all(x.tobytes() == found[1][name].tobytes() for name, x in found[0].items())


@settings(max_examples=8)
@given(specs(step=8, dtypes=("float16", "bfloat16")).filter(free), st.sampled_from([(8, 4), (8, 2), (2, 8), (4, 4), (2, 2)]), st.data())
def test_strands_have_the_same_bits_in_a_cluster_and_in_turn(spec, blocks_and_warps, data):
    (q, k, v), values = data.draw(calls(spec, 200))
    cluster, strands = blocks_and_warps
    found = []
    for in_turn in (False, True):
        asked_for = Demand(shared=True, rows=16, strands=strands, in_turn=in_turn, cluster=cluster)
        try:
            chosen = with_small_shares(plan(spec, "sm_90a", demand=asked_for))
        except PlanError:
            reject()  # too wide for so many warps
        found.append(emulate(chosen, render(chosen), q, k, v, values, seed=data.draw(st.integers(0, 9))))
        judge(spec, found[-1], q, k, v, LOOSE, **values)
    assert all(x.tobytes() == found[1][name].tobytes() for name, x in found[0].items())


@settings(max_examples=8)
@given(specs(step=8, dtypes=("float16", "bfloat16")).filter(free), st.data())
def test_blocks_that_have_a_multiprocessor_alone(spec, data):
    """Tiles of `split: auto` have more keys where they fit."""
    spec = Spec(**(spec.to_json() | {"split": "auto"}))
    (q, k, v), values = data.draw(calls(spec, 400))
    try:
        chosen = with_small_shares(plan(spec, "sm_90a", demand=Demand(shared=True, rows=16, strands=4, cluster=8, alone=True)))
    except PlanError:
        reject()  # too wide for so many warps
    judge(spec, emulate(chosen, render(chosen), q, k, v, values, seed=data.draw(st.integers(0, 9))), q, k, v, LOOSE, **values)
