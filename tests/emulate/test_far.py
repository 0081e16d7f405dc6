"""Arrays whose rows, heads and sequences lie gigabytes apart, in memory that takes no room: an offset in 32 bits reads something else."""

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flashgen.emulate import EmulationFault, emulate, run
from flashgen.emulate.memory import anonymous
from flashgen.expr.meaning.reference import reference
from flashgen.plan import plan
from flashgen.render import render
from flashgen.spec import Spec

PAGE = {"cache": {"page": 16}}
SPECS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "tma": ("sm_90a", "float16", {}),
    "cp_async": ("sm_80", "bfloat16", {}),
    "planes": ("sm_90a", "float32", {}),
    "planes_sm_80": ("sm_80", "float32", {}),
    "pages": ("sm_80", "bfloat16", PAGE),
    "pages, plain": ("sm_80", "float32", PAGE),
}
BATCH, ROWS, HEADS, DIM = 2, 40, 2, 64


@functools.cache
def planned(name):
    arch, dtype, cache = SPECS[name]
    tensors = {"bias": {"shape": ["b", "q_len", "hq", "kv_len"], "dtype": "float32"}}
    chosen = plan(Spec(head_dim=DIM, dtype=dtype, mask="causal", score="s + bias[b, q_idx, h, kv_idx]", tensors=tensors, **cache), arch)
    return chosen, render(chosen)


def far(shape, dtype):
    """An array of four axes, zero: the first steps by 2^36 bytes and some, the second by 2^30, the third by 2^35."""
    strides = (2**36 + 512, 2**30 + 64, 2**35 + 128, np.dtype(dtype).itemsize)
    span = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + strides[-1]
    return np.ndarray(shape, dtype, anonymous(span), 0, strides)


def far_output(shape, dtype):
    """An output full of poison, with no memory before it."""
    x, poison = far(shape, dtype), run.POISON[dtype.itemsize]
    x.view(poison.dtype)[...] = poison
    return np.full(run.GUARD // dtype.itemsize, poison), x


def is_right(name, monkeypatch, change=None):
    chosen, source = planned(name)
    if change:
        assert change[0] in source.text
        source = replace(source, text=source.text.replace(*change))
    monkeypatch.setattr(run, "guarded", far_output)
    rng, element = np.random.default_rng(5), chosen.spec.element
    page, values = chosen.spec.page, {}
    q, k, v = (far((*of, HEADS, DIM), element.numpy) for of in ((BATCH, ROWS), *[(4, page) if page else (BATCH, ROWS)] * 2))
    bias = far((BATCH, ROWS, HEADS, 48 if page else ROWS), np.float32)
    if page:
        values = {"kv_lens": np.int32([40, 17]), "block_table": np.int32([[3, 1, 2], [2, 3, -1]])}
    for x in (q, k, v, bias):
        x[...] = rng.standard_normal(x.shape)
    found = emulate(chosen, source, q, k, v, {"bias": bias, **values}, seed=3)["o"].astype(np.float64)
    want, _ = reference(chosen.spec, q, k, v, bias=bias, **values)
    off = np.linalg.norm(found - want, axis=-1)
    return bool((off <= 3 * element.rounding * np.linalg.norm(want, axis=-1) + 2e-6).all())


@pytest.mark.parametrize("name", SPECS)
def test_far_arrays(name, monkeypatch):
    assert is_right(name, monkeypatch)


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("cp_async", "(first + row) * strides.row", "(first + row) * int(strides.row)"),
        ("tma", "((at += index * strides[axis++]), ...)", "((at += int(index * strides[axis++])), ...)"),
        ("pages", "max(pages[i / PASS], 0) * strides.batch", "max(pages[i / PASS], 0) * int(strides.batch)"),
        ("pages, plain", "page * strides.batch", "page * int(strides.batch)"),
    ],
)
def test_an_offset_in_32_bits(name, right, wrong, monkeypatch):
    try:
        right_all_the_same = is_right(name, monkeypatch, (right, wrong))
    except EmulationFault:  # the processor stops at what is no memory, or an output stays unset
        right_all_the_same = False
    assert not right_all_the_same
