"""Tuning by a clock that a test winds: the fastest right candidate is kept after every round, and later compiles use it."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from flashgen import store, tune
from flashgen.arch import by_name
from flashgen.cli.build import kernel_plan
from flashgen.cli.show import text_of
from flashgen.cli.tune import report
from flashgen.errors import BackendError
from flashgen.expr.meaning.reference import reference
from flashgen.expr.meaning.reference_backward import backward as gradients
from flashgen.plan import candidates, plan
from flashgen.plan.backward import backward_candidates, plan_backward
from flashgen.runtime import tuned
from flashgen.runtime.clock import Reading
from flashgen.spec import Spec

ARCH, CARD = by_name("sm_90a"), "Some Card"
SPEC = Spec(head_dim=64, dtype="bfloat16", mask="causal")
NAMES = candidates(SPEC, ARCH, 512, each_tile=True)[: tune.CANDIDATES]
CASES = tune.cases(SPEC, [40], batch=1, heads=1)


class FakeGpu:
    """Right, but for the candidate WRONG; says who ran last."""

    WRONG = NAMES[2]
    last = ""

    def __init__(self, spec, arch, choice):  # noqa: ARG002
        self.spec, self.candidate = spec, choice.candidate

    def kernel(self, arch, keys):
        pass

    def __call__(self, given, out, params):  # noqa: ARG002
        FakeGpu.last = self.candidate
        o, _ = reference(self.spec, *given)
        return (o * (2 if self.candidate == self.WRONG else 1),)


class FakeClock:
    """The later in the cost model's order, the faster. Gives up after so many readings."""

    def __init__(self, most=10**6):
        self.left = most

    def read(self, run, calls):  # noqa: ARG002
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt
        run()
        return Reading(2.0 - 0.1 * NAMES.index(FakeGpu.last), 0.01)


@pytest.fixture(autouse=True)
def aside(monkeypatch, tmp_path):
    monkeypatch.setattr(tune, "Gpu", FakeGpu)
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path))


def test_the_fastest_is_kept_and_used():
    (found,) = tune.tune(CASES, ARCH, CARD, FakeClock(), np)
    assert found.choice == NAMES[-1]
    assert found.planned == NAMES[0]
    assert found.wrong == (FakeGpu.WRONG,)
    assert found.loss == pytest.approx(2.0 / (2.0 - 0.1 * (len(NAMES) - 1)) - 1, abs=1e-3)
    chosen = tuned.planned(SPEC, ARCH, 512, CARD)
    assert f"{chosen.attention.tile.text}," in NAMES[-1]
    assert "flashgen tune measured it" in dict(chosen.decision.reasons)["tile"]
    json.dumps(found.to_json(), allow_nan=False)


def test_the_cost_models_choice_may_be_wrong(monkeypatch, capsys):
    monkeypatch.setattr(FakeGpu, "WRONG", NAMES[0])
    found = tune.tune(CASES, ARCH, CARD, FakeClock(), np)
    assert (found[0].choice, found[0].loss) == (NAMES[-1], None)
    report(found, complete=True, card="Some Card")
    said = capsys.readouterr().out
    assert f"{NAMES[0]} is wrong: never chosen" in said
    assert "the cost model has no numbers of Some Card" in said
    assert "benchmarks/fit.py" in said


def test_where_all_are_wrong_nothing_is_kept(monkeypatch):
    monkeypatch.setattr(tune, "candidates", lambda *_, **_how: [FakeGpu.WRONG])
    with pytest.raises(BackendError, match="all 1 candidates of attention for 512 keys are wrong on Some Card, so nothing is kept"):
        tune.tune(CASES, ARCH, CARD, FakeClock(), np)
    assert tuned.choice(SPEC, ARCH, 512, CARD) is None


def test_what_was_not_tuned_is_planned_as_before():
    tune.tune(CASES, ARCH, CARD, FakeClock(), np)
    others = [(SPEC, ARCH, 8192, CARD), (SPEC, ARCH, 512, "Another Card"), (SPEC, by_name("sm_80"), 512, CARD)]
    for spec, arch, length, card in [*others, (Spec(head_dim=64, dtype="float16", mask="causal"), ARCH, 512, CARD)]:
        assert tuned.planned(spec, arch, length, card) == plan(spec, arch.name, 0, length)
    named = Spec(head_dim=64, dtype="bfloat16", mask="causal", name="another")
    assert tuned.choice(named, ARCH, 512, CARD) == NAMES[-1]


def test_an_interruption_keeps_the_rounds_before():
    one_round = 3 * len(NAMES)  # two readings that warm up, one of the round
    with pytest.raises(KeyboardInterrupt):
        tune.tune(CASES, ARCH, CARD, FakeClock(one_round), np)
    assert tuned.choice(SPEC, ARCH, 512, CARD) == NAMES[-1]


def test_a_broken_or_old_choice_is_said_and_not_used():
    path = tuned.entry(SPEC, ARCH, 512, CARD)
    path.parent.mkdir(parents=True)
    for text, said in (("{", "cannot be read"), ('{"choice": "1x1, 9 stages"}', "none of the planner's candidates")):
        path.write_text(text)
        with pytest.warns(RuntimeWarning, match=said):
            assert tuned.planned(SPEC, ARCH, 512, CARD) == plan(SPEC, ARCH.name, 0, 512)


def test_without_a_home_there_is_no_choice(monkeypatch, recwarn):
    monkeypatch.setattr(store, "root", lambda: Path(os.devnull))
    assert tuned.choice(SPEC, ARCH, 512, CARD) is None
    assert not recwarn.list
    with pytest.raises(BackendError, match="set FLASHGEN_CACHE_DIR"):
        tuned.keep(SPEC, ARCH, 512, CARD, {})


def test_what_is_shown_and_built_is_what_a_call_runs(monkeypatch):
    monkeypatch.setattr(tuned, "device", SimpleNamespace(missing=lambda: None, current=lambda: SimpleNamespace(name=CARD)))
    assert kernel_plan(SPEC, ARCH.name) == plan(SPEC, ARCH.name)
    chosen = candidates(SPEC, ARCH)[-1]
    tuned.keep(SPEC, ARCH, 8192, CARD, {"choice": chosen})
    assert kernel_plan(SPEC, ARCH.name) == plan(SPEC, ARCH.name, candidate=chosen)
    assert json.loads(text_of(SPEC, "plan", ARCH.name))["reasons"][0]["reason"].startswith("flashgen tune measured it")


def test_candidates_are_legal_distinct_and_in_order():
    for arch in ("sm_90a", "sm_80", "sm_120"):
        for head_dim in (64, 128, 256):
            spec = Spec(head_dim=head_dim, dtype="bfloat16")
            found = candidates(spec, arch)
            assert len(found) == len(set(found))
            assert plan(spec, arch).digest == plan(spec, arch, candidate=found[0]).digest
            last = plan(spec, arch, candidate=found[-1])
            assert found[-1].startswith(last.attention.tile.text)
            assert {r.candidate for r in last.decision.rejected} >= set(found[:-1])


def test_the_command_needs_a_gpu(monkeypatch, capsys):
    from flashgen.cli import main
    from flashgen.runtime import device

    if device.missing() is None:
        pytest.skip("there is a GPU")
    monkeypatch.setattr("sys.argv", ["flashgen", "tune", "causal"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_backward_is_tuned_beside_its_forward(monkeypatch):
    """By rows of dq; the choices of the two parts are kept apart, and plans of the backward use theirs."""
    spec = Spec(head_dim=64, dtype="bfloat16", mask="causal", backward=True)
    names = backward_candidates(spec, ARCH, 512, each_tile=True)[: tune.CANDIDATES]

    class FakeBackward(FakeGpu):
        def __init__(self, spec, arch, candidate):  # noqa: ARG002
            self.spec, self.candidate = spec, candidate

        def __call__(self, given, params):  # noqa: ARG002
            FakeGpu.last = self.candidate
            return (gradients(spec, *(given[name] for name in ("q", "k", "v", "do"))).q,)

    class Clock:
        def read(self, run, calls):  # noqa: ARG002
            run()
            return Reading(1.0 if FakeGpu.last in (NAMES[-1], names[-1]) else 2.0, 0.01)

    monkeypatch.setattr(tune, "GpuBackward", FakeBackward)
    of_forward, of_backward = tune.tune(tune.cases(spec, [40], batch=1, heads=1), ARCH, CARD, Clock(), np)
    assert (of_forward.part, of_backward.part) == ("forward", "backward")
    assert (of_forward.choice, of_backward.choice) == (NAMES[-1], names[-1])
    chosen = tuned.planned_backward(spec, ARCH, 512, CARD)
    assert names[-1].startswith(chosen.main.tile.text)
    assert dict(chosen.decision.reasons)["tile"].startswith("flashgen tune measured it")
    assert chosen.digest != plan_backward(spec, ARCH, length=512).digest


def test_a_choice_of_shorter_sequences_is_not_one_of_longer_ones_that_have_others():
    """Beyond 8,192 rows the mask hides tiles, which lists leave out: they take registers that the widest candidate wants."""
    spec = Spec(head_dim=128, dtype="bfloat16", mask="(q_idx < 8192) | (kv_idx // 64 % 9 == q_idx // 64 % 9)", backward=True)
    shorter, longer = (backward_candidates(spec, "sm_80", length) for length in (8192, 16384))
    for chosen in (next(one for one in shorter if one not in longer), next(one for one in shorter if one in longer[1:])):
        tuned.keep(spec, by_name("sm_80"), 8192, CARD, {"choice": chosen}, tuned.BACKWARD)
        made = tuned.planned_backward(spec, by_name("sm_80"), 16384, CARD)
        assert dict(made.decision.reasons)["tile"].startswith("flashgen tune measured it") == (chosen in longer)
