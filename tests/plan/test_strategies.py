"""Strategies say what they serve: a new engine and a new operand need no other file, and what nobody serves is one error."""

import dataclasses

import jinja2
import pytest

from flashgen.arch import by_name
from flashgen.emulate import emulate
from flashgen.errors import PlanError
from flashgen.plan import plan
from flashgen.plan.engines.mma_sync import MmaSync
from flashgen.plan.operands.planes_mma_sync import PlanesMmaSync
from flashgen.plan.strategies import STRATEGIES
from flashgen.plan.strategy import Request, serving
from flashgen.render import render
from flashgen.render.environment import environment
from flashgen.spec import Spec
from tests.plan.agreement import arrays, judge

TOY = dataclasses.replace(by_name("sm_80"), name="toy", engines=("toy",))


class ToyEngine(MmaSync):
    """An engine that multiplies as mma_sync does, on an architecture of its own, with a key tile of 32, and a skeleton."""

    engine, skeleton = "toy", "forward_toy"

    def drafts(self, problem):
        return (draft for draft in super().drafts(problem) if draft.tile.block_n == 32)


class ToyOperand(PlanesMmaSync):
    """float32 as planes on the toy's architecture, with tiles of at most 32 rows."""

    engine = "toy"

    def objection(self, problem, draft):
        return "too high" if draft.tile.block_m > 32 else super().objection(problem, draft)


@pytest.fixture
def toys(monkeypatch):
    """Two strategies more, the skeleton of one, and no plan of before."""
    monkeypatch.setattr("flashgen.plan.search.STRATEGIES", [*STRATEGIES, ToyEngine(), ToyOperand()])
    skeletons = jinja2.DictLoader({"kernels/forward_toy.cu.j2": '//% extends "kernels/forward_sm80.cu.j2"\n'})
    monkeypatch.setattr(environment(), "loader", jinja2.ChoiceLoader([skeletons, environment().loader]))
    yield
    plan.cache_clear()


@pytest.mark.usefixtures("toys")
@pytest.mark.parametrize(("dtype", "shown"), [("float16", ("block_n", 32)), ("float32", ("block_m", 32))])
def test_a_toy_plans_emits_and_is_right(dtype, shown):
    spec = Spec(head_dim=16, dtype=dtype, mask="causal", outputs=["o", "lse"])
    program = plan(spec, TOY)
    assert getattr(program.attention.tile, shown[0]) == shown[1]
    q, k, v = arrays(spec, 1, 2, 2, 70, 90)
    found = emulate(program, dataclasses.replace(render(program), arch="sm_80"), q, k, v)
    judge(spec, found, q, k, v)


def test_what_nobody_serves_is_one_error_that_says_why():
    with pytest.raises(PlanError, match=r"no kernel serves online attention of float16 on toy\..*forward_sm90: toy has no wgmma") as error:
        plan(Spec(head_dim=64, dtype="float16"), TOY)
    assert "mma_sync" in str(error.value)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_120", "host"])
@pytest.mark.parametrize("schedule", ["auto", "three_pass", "standard", {"normalize": "each_step", "outer": "kv"}])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_one_strategy_serves_a_request_besides_slower_ones(arch, schedule, dtype):
    request = Request(Spec(head_dim=64, dtype=dtype, schedule=schedule), by_name(arch), 0)
    fits = [strategy for strategy in STRATEGIES if strategy.serves(request) is None]
    assert serving(STRATEGIES, request) is fits[0]
    assert [strategy.engine for strategy in fits] == [engine for engine in request.arch.engines if engine in {one.engine for one in fits}]
