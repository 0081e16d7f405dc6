"""`flashgen demo`: every step on a machine without a GPU, and what it says of steps that a machine lacks."""

import types

import pytest

from flashgen.arch import by_name
from flashgen.bench import case
from flashgen.bench.run import Measured, Results, Skipped
from flashgen.cli import check as checking
from flashgen.cli import demo
from flashgen.emulate import EmulationFault
from flashgen.errors import BackendError
from flashgen.runtime import device
from flashgen.spec.shipped import find


def raising(error):
    def fail(*_, **__):
        raise error

    return fail


@pytest.fixture
def bare(monkeypatch):
    """A machine with neither GPU nor compilers, and a check of one shape."""
    monkeypatch.setattr(device, "missing", lambda: "no driver here")
    monkeypatch.setattr(checking, "SHAPES", ((1, 70, 90, 1),))
    monkeypatch.setattr(demo.nvrtc, "compile", raising(BackendError("no NVRTC here")))
    monkeypatch.setattr(demo, "emulate", raising(BackendError("no g++ here")))


def test_a_machine_without_a_gpu_runs_the_kernel_on_the_emulator(flashgen, monkeypatch):
    monkeypatch.setattr(device, "missing", lambda: "no driver here")
    monkeypatch.setattr(checking, "SHAPES", ((1, 70, 90, 1),))
    ran = flashgen("demo")
    assert (ran.code, ran.err) == (0, "")
    for said in ("softcap * tanh(s / softcap)", "return ptx::tanh", "registers a thread", "5 of 5 shapes", "no race", "flashgen new mine"):
        assert said in ran.out
    assert "no kernel runs here: no driver here" in ran.out
    assert ran.out.rstrip().endswith("left out on this machine: the speed")


@pytest.mark.usefixtures("bare")
def test_a_bare_machine_says_what_it_leaves_out(flashgen):
    ran = flashgen("demo")
    assert (ran.code, ran.err) == (0, "")
    for reason in ("no NVRTC here", "no g++ here", "no driver here"):
        assert reason in ran.out
    assert "5 of 5 shapes" in ran.out
    assert ran.out.rstrip().endswith("left out on this machine: the binary, the same text on this CPU, the speed")


@pytest.mark.usefixtures("bare")
def test_a_wrong_kernel_is_exit_code_1(flashgen, monkeypatch):
    monkeypatch.setattr(demo, "emulate", raising(EmulationFault("two threads write one word")))
    ran = flashgen("demo")
    assert ran.code == 1
    assert "two threads write one word" in ran.out
    monkeypatch.setattr(demo, "emulate", lambda _, __, q, *___: {"o": q + 1})
    assert flashgen("demo").code == 1


@pytest.mark.parametrize("wrong", [False, True])
def test_the_speed_is_beside_that_of_what_is_installed(monkeypatch, wrong):
    one = case(find("softcap"), 4096)
    skipped = [Skipped(case=one.name, implementation="cudnn", reason="no softcap")]
    if wrong:
        skipped.append(Skipped(case=one.name, implementation="flashgen mma.sync", reason="off", wrong=True))
    measured = [
        Measured(case=one, implementation=name, ms=ms, host_us=1.0, compile_s=0.0, mask_ms=0.0, visible=0.5)
        for name, ms in (("flashgen", 1.0), ("flash-attn 4", 2.0))
    ]
    monkeypatch.setattr(device, "current", lambda: types.SimpleNamespace(name="a card", arch=by_name("sm_90a")))
    monkeypatch.setattr(demo.arrays, "cupy", lambda: None)
    monkeypatch.setattr(demo, "DeviceClock", lambda: None)
    monkeypatch.setattr(demo, "run", lambda *_: Results(measured, skipped))
    step = demo._timed(find("softcap"))
    assert step.passed is not wrong
    assert step.title.endswith("on a card")
    first, second, *rest = step.text.splitlines()
    assert (first.partition(":")[0], second.partition(":")[0]) == ("flashgen", "flash-attn 4")
    assert rest[0] == "not timed: cudnn, no softcap"
    assert rest[-1] == "flashgen is 2.00 times as fast as the best of the others"
