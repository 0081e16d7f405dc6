"""Deterministic gradients on Hopper: key tiles take turns at the sums of dq, so bits do not depend on the order in which blocks run."""

from dataclasses import replace

import numpy as np
import pytest

from flashgen.emulate import EmulationFault, emulate_backward
from flashgen.plan.backward import plan_backward
from flashgen.render import render
from flashgen.spec import Spec
from tests.plan.gradients import given, judge

IDS = {"ids": {"shape": ["b", "kv_len"], "dtype": "int32"}}
CASES = {
    "causal": ({"head_dim": 64, "mask": "causal"}, (1, 4, 2, 300, 560)),
    "window": ({"head_dim": {"qk": 72, "v": 24}, "mask": "window(60, 20)"}, (1, 2, 2, 300, 450)),
    "documents": ({"head_dim": 16, "mask": "causal & document(ids)", "tensors": IDS}, (1, 2, 1, 400, 400)),
    "two blocks": ({"head_dim": 136, "mask": "causal"}, (1, 2, 1, 200, 300)),
}


def drawn(case):
    said, shape = CASES[case]
    spec = Spec(dtype="bfloat16", backward=True, deterministic=True, **said)
    values = {t.name: np.arange(shape[4], dtype=np.int32)[None] // 77 for t in spec.tensors}
    return spec, given(spec, *shape, **values), values


def seen(program, source, arrays, values, seeds=(0, 5)):
    """The gradients under two orders of blocks."""
    return [emulate_backward(program, source, arrays, values, seed=seed) for seed in seeds]


def alike(found):
    return all((found[0][name] == found[1][name]).all() for name in found[0])


@pytest.mark.parametrize("case", CASES)
def test_the_same_bits_in_any_order(case):
    spec, arrays, values = drawn(case)
    program = plan_backward(spec, "sm_90a")
    assert program.skeleton.startswith("backward_sm90")
    found = seen(program, render(program), arrays, values)
    judge(spec, found[0], arrays, **values)
    assert alike(found)


TURNS = {  # a protocol that is broken: of who waits, of who passes the turn on
    "another's turn": ("!= after + 1", "!= after + 2"),
    "nobody passes on": ("ptx::store_release(turn, block + 1), ", ""),
    "the turn before": ("ptx::store_release(turn, block + 1)", "ptx::store_release(turn, block)"),
}


@pytest.mark.parametrize("fault", TURNS)
def test_who_waits_in_vain_is_told(fault):
    old, new = TURNS[fault]
    spec, arrays, values = drawn("window")
    program = plan_backward(spec, "sm_90a")
    source = render(program)
    assert old in source.text
    for seed in (0, 1):
        with pytest.raises(EmulationFault, match=r"deadlock: words of global memory(.*\n)+.* wait for `turns`.* in Turns::take"):
            emulate_backward(program, replace(source, text=source.text.replace(old, new)), arrays, values, seed=seed)


def test_a_planted_fault_shows():
    """Nobody waits for a turn: other bits, or sums that overtake each other."""
    text = "ptx::mbarrier_wait(shared + TURN, (step + 1) & 1);"
    spec, arrays, values = drawn("window")
    program = plan_backward(spec, "sm_90a")
    source = render(program)
    assert text in source.text
    try:
        found = seen(program, replace(source, text=source.text.replace(text, "")), arrays, values)
    except EmulationFault:
        return
    assert not alike(found)
