"""The backward's kernels on the emulator, under its race checker, beside the float64 reference."""

import numpy as np
import pytest

from flashgen.emulate import emulate_backward
from flashgen.plan import plan_backward
from flashgen.render import render
from flashgen.spec import Spec
from tests.plan.gradients import given, judge


def check(spec, arch, shape, copy_bytes=0, seed=0, **values):
    """Batch, heads, kv_heads, q_len, kv_len of a call that is judged."""
    program, arrays = plan_backward(spec, arch, copy_bytes), given(spec, *shape, seed=seed, dlse=True, **values)
    found = emulate_backward(program, render(program), arrays, values, seed=seed)
    judge(spec, found, arrays, **values)
    return found


@pytest.mark.parametrize("mask", ["full", "causal"])
@pytest.mark.parametrize(("arch", "dtype", "head_dim"), [("sm_80", "bfloat16", 64), ("sm_90", "float16", {"qk": 32, "v": 16})])
def test_beside_the_reference(arch, dtype, head_dim, mask):
    check(Spec(head_dim=head_dim, dtype=dtype, mask=mask, backward=True), arch, (1, 4, 2, 70, 90))


@pytest.mark.parametrize(("copy_bytes", "head_dim"), [(8, 40), (4, 16), (2, 72)])
def test_rows_of_any_alignment(copy_bytes, head_dim):
    check(Spec(head_dim=head_dim, dtype="bfloat16", backward=True), "sm_80", (1, 2, 1, 33, 20), copy_bytes, seed=1)


def test_lengths_of_zero():
    """Without queries dk and dv are zeros, without keys dq."""
    spec = Spec(head_dim=16, dtype="float16", mask="causal", backward=True)
    for q_len, kv_len in ((0, 5), (5, 0)):
        found = check(spec, "sm_80", (1, 1, 1, q_len, kv_len))
        assert not any(x.any() for x in found.values())


def test_rows_without_keys_give_zeros():
    """Queries that stand before the first key see none; their lse is -inf."""
    spec = Spec(head_dim=16, dtype="float16", mask="causal", backward=True)
    found = check(spec, "sm_80", (1, 1, 1, 40, 20))
    assert not found["dq"][:, :20].any()
    assert found["dq"][:, 20:].any()


def test_a_low_lse_beside_keys_that_do_not_exist():
    """Scores of the columns beyond the last key would overflow relative to it."""
    spec = Spec(head_dim=16, dtype="float16", score="s - 120.0", backward=True)
    found = check(spec, "sm_80", (1, 1, 1, 20, 5))
    assert np.isfinite(np.float64(found["dk"])).all()
