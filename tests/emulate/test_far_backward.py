"""Gradients of arrays whose rows, heads and sequences lie gigabytes apart: an offset in 32 bits reads or writes something else."""

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flashgen.emulate import EmulationFault, backward, emulate_backward, run
from flashgen.emulate.memory import anonymous
from flashgen.plan.backward import plan_backward
from flashgen.render import render
from flashgen.spec import Spec
from tests.emulate.test_packed import ends
from tests.plan.agreement import arrays
from tests.plan.gradients import completed, judge

PACKED = {"layout": "thd"}
SPECS: dict[str, tuple[str, dict[str, Any]]] = {
    "wgmma": ("sm_90a", {"head_dim": 64}),
    "two blocks": ("sm_90a", {"head_dim": 136}),
    "mma_sync": ("sm_80", {"head_dim": 64}),
    "in order": ("sm_80", {"head_dim": 32, "deterministic": True}),
    "packed": ("sm_90a", {"head_dim": 64} | PACKED),
    "packed, mma_sync": ("sm_80", {"head_dim": 32} | PACKED),
}
BATCH, ROWS, HEADS = 2, 40, 2


@functools.cache
def planned(name):
    arch, said = SPECS[name]
    chosen = plan_backward(Spec(dtype="bfloat16", mask="causal", backward=True, **said), arch)
    return chosen, render(chosen)


def far(shape, dtype):
    """An array, zero: sequences step by 2^36 bytes and some, rows by 2^30, heads by 2^35."""
    strides = (2**36 + 512, 2**30 + 64, 2**35 + 128, np.dtype(dtype).itemsize)[-len(shape) :]
    span = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + strides[-1]
    return np.ndarray(shape, dtype, anonymous(span), 0, strides)


def far_output(shape, dtype):
    """An output full of poison, with no memory before it."""
    x, poison = far(shape, dtype), run.POISON[dtype.itemsize]
    x.view(poison.dtype)[...] = poison
    return np.full(run.GUARD // dtype.itemsize, poison), x


def are_right(name, monkeypatch, change=None):
    """True if the gradients are. The last rows of packed sequences are nobody's."""
    chosen, source = planned(name)
    if change:
        assert change[0] in source.text
        source = replace(source, text=source.text.replace(*change))
    monkeypatch.setattr(backward, "guarded", far_output)
    spec, packed = chosen.spec, chosen.spec.geometry.packed
    values = dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), ends([17, 20])) if packed else {}
    given = completed(spec, *arrays(spec, BATCH, HEADS, 1, ROWS, ROWS), **values)
    views = {role: far(getattr(given, role).shape, spec.element.numpy) for role in ("q", "k", "v", "o", "do")}
    for role, x in views.items():
        x[...] = getattr(given, role)
    found = emulate_backward(chosen, source, replace(given, **views), values, seed=3)
    try:
        judge(spec, found, given, **values)
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize("name", SPECS)
def test_far_arrays(name, monkeypatch):
    assert are_right(name, monkeypatch)


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("wgmma", "dq + q_idx * p.dq_strides.row", "dq + int(q_idx * p.dq_strides.row)"),
        ("mma_sync", "o + q_idx * p.o_strides.row", "o + int(q_idx * p.o_strides.row)"),
        ("packed", "rows[row * strides.row", "rows[int(row * strides.row)"),
    ],
)
def test_an_offset_in_32_bits(name, right, wrong, monkeypatch):
    try:
        right_all_the_same = are_right(name, monkeypatch, (right, wrong))
    except EmulationFault:  # the processor stops at what is no memory, or a gradient stays unset
        right_all_the_same = False
    assert not right_all_the_same
