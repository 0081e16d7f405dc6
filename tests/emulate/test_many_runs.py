"""Masks with more runs of key tiles than a text has loops for: kernels that go from tile to tile, beside the reference."""

import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashgen.bench.hostile import draw
from flashgen.emulate import emulate
from flashgen.plan import plan
from flashgen.plan.geometry import Sizes
from flashgen.plan.program import MOST_LOOPS
from flashgen.render import render
from flashgen.spec import Spec
from tests.plan.agreement import judge

CLEAN = "(kv_idx >= 90) & ((kv_idx - 90) // 16 < where(q_idx < 90, q_idx // 16, (q_idx - 90) // 16 + 1))"
DIFFUSION = f"((q_idx < 90) & (kv_idx < 90) & (kv_idx // 16 == q_idx // 16)) | ({CLEAN})"
BIGBIRD = "(abs(q_idx // 64 - kv_idx // 64) <= 1) | (kv_idx // 64 == 0) | (kv_idx // 64 == (kv_len - 1) // 64) | (q_idx // 64 == 0)"
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "wgmma, narrow": ("sm_90a", {"mask": DIFFUSION, "block": {"m": 128, "n": 32}}),
    "mma_sync": ("sm_80", {"mask": BIGBIRD, "block": {"m": 64, "n": 32}, "cache": "contiguous"}),
    "shares": ("sm_90a", {"mask": BIGBIRD, "split": 3, "block": {"m": 64, "n": 32}}),
}


@functools.cache
def planned(name: str) -> tuple[Any, Any]:
    arch, said = CASES[name]
    chosen = plan(Spec(**{"head_dim": 16, "dtype": "float16", "outputs": ["o", "lse"], **said}), arch)
    assert len(chosen.attention.ranges.loops) > MOST_LOOPS
    assert not chosen.dealing.listed
    return chosen, render(chosen)


@pytest.mark.parametrize("name", CASES)
@given(st.integers(1, 290), st.integers(0, 300), st.integers(0, 999))
@settings(max_examples=2)
def test_as_the_reference(name, q_len, kv_len, seed):
    chosen, source = planned(name)
    sizes = Sizes(batch=1, q_len=q_len, kv_len=kv_len, heads=2, kv_heads=2)
    q, k, v, values = draw(chosen.spec, sizes, (), np.random.RandomState(seed))
    found = emulate(chosen, source, q, k, v, values, seed=seed % 10)
    judge(chosen.spec, {name: found[name] for name in ("o", "lse")}, q, k, v, **values)


@pytest.mark.parametrize("mask", [DIFFUSION, BIGBIRD])
def test_a_step_is_there_twice(mask):
    """Whatever the number of runs: compilers take as long as there are copies."""
    text = render(plan(Spec(head_dim=128, dtype="bfloat16", mask=mask), "sm_90a")).text
    assert text.count("advance_tile<") == 2
