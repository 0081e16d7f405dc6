"""Timelines: everyone does one thing at a time, all the time, as many products as the cost model counts."""

import itertools

import pytest

from flashgen.pages.timeline import KINDS, PRODUCTS, timeline
from flashgen.plan import plan
from flashgen.plan.backward import plan_backward
from flashgen.spec import Spec

PLANS = {
    f"{dtype} {head_dim} {arch}": plan(Spec(head_dim=head_dim, dtype=dtype, mask="causal"), arch)
    for dtype in ("bfloat16", "float32")
    for head_dim in (64, 128, 256)
    for arch in ("sm_90a", "sm_80", "sm_120")
}
PLANS |= {
    f"backward {head_dim} {arch}": plan_backward(Spec(head_dim=head_dim, dtype="float16", backward=True), arch)
    for head_dim in (64, 128, 256)
    for arch in ("sm_90a", "sm_80")
}


@pytest.mark.parametrize("program", PLANS.values(), ids=PLANS)
def test_bars_fill_each_lane(program):
    time = timeline(program)
    assert time
    workers = program.main.workers
    computing = [lane for lane in time.lanes if lane.role.startswith(("warpgroup", "block"))]
    assert len(computing) == (workers.warpgroups if workers.load_warps else workers.blocks)
    for lane in time.lanes:
        bars = sorted(lane.bars, key=lambda bar: bar.begin)
        assert {bar.kind for bar in bars} <= KINDS.keys()
        assert bars[0].begin == pytest.approx(0)
        assert bars[-1].end == pytest.approx(time.clocks)
        assert all(one.end == pytest.approx(two.begin) for one, two in itertools.pairwise(bars))


def test_products_take_what_the_cost_model_counts():
    program = PLANS["bfloat16 128 sm_80"]
    time = timeline(program)
    lane = time.lanes[-1]
    busy = sum(bar.end - bar.begin for bar in lane.bars if bar.kind == PRODUCTS)
    assert busy == pytest.approx(dict(program.decision.cost)["tensor cores"] * time.steps)


def test_the_interpreter_has_none():
    assert timeline(plan(Spec(head_dim=64, dtype="float16"), "host")) is None
