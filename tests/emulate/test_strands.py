"""Any spec whose keys are shared: strands beside each other and in turn, under the race checker, are right and have the same bits."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from flashgen.emulate import EmulationFault, emulate
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


@settings(max_examples=12)
@given(
    specs(step=8, dtypes=("float16", "bfloat16")).filter(free),
    st.sampled_from([(8, 4, 1), (8, 2, 1), (2, 8, 1), (4, 4, 1), (2, 2, 1), (4, 8, 2), (2, 8, 2), (2, 16, 4), (2, 6, 3)]),
    st.sampled_from([16, 32]),
    st.data(),
)
def test_strands_have_the_same_bits_in_a_cluster_and_in_turn(spec, blocks_and_strands, rows, data):
    """A warp of a cluster may have one, or some, or one warp all."""
    (q, k, v), values = data.draw(calls(spec, 200))
    cluster, strands, each = blocks_and_strands
    found = []
    for whose in (Demand(each=each), Demand(in_turn=True)):
        asked_for = replace(whose, shared=True, rows=rows, strands=strands, cluster=cluster)
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


TWO_EACH = Demand(shared=True, rows=16, strands=8, cluster=2, each=2)
FAULTS = {  # of a warp that has two strands
    "the second begins with what the first knows": (", begin_anew();", ";"),
    "the keys of the first alone": ("own.begin[range] = last.begin[range]", "own.begin[range] = own.begin[range]"),
    "the state of the second twice": ("if (turn < TURNS - 1) put_state(turn)", "if (turn < TURNS - 1) put_state(TURNS - 1)"),
    "nothing of warps without keys": ("put_state(turn);\n    put_state(TURNS - 1)", "(void)turn;\n    put_state(TURNS - 1)"),
    "both in one place": ("STATE + turn * BLOCK_M * STATE_ROW", "STATE + 0 * BLOCK_M * STATE_ROW"),
    "who joins does not wait": ("ptx::cluster_wait();                 // the states", "// the states"),
    "the state of another warp": ("strand / TURNS % WARPS * WARP_BYTES", "strand % WARPS * WARP_BYTES"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_show(fault):
    spec = Spec(head_dim=64, dtype="bfloat16", mask="causal")
    chosen = plan(spec, "sm_90a", demand=TWO_EACH)
    source, (right, wrong) = render(chosen), FAULTS[fault]
    assert right in source.text
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal((1, n, h, 64)).astype(spec.element.numpy) for n, h in ((1, 4), (150, 1), (150, 1)))
    expected = emulate(chosen, source, q, k, v)["o"]
    with pytest.raises((EmulationFault, AssertionError)):
        np.testing.assert_array_equal(emulate(chosen, replace(source, text=source.text.replace(right, wrong)), q, k, v)["o"], expected)
