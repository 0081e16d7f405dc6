"""A backward takes memory for delta, one dq in float32, and dk and dv of blocks that share query heads: a formula, whatever the spec."""

import itertools

import pytest

from flashgen.plan.backward import plan_backward
from flashgen.plan.geometry import Sizes
from flashgen.spec import Spec
from tests.plan.backward_memory import allocated, stated

GATE = {"output": "o * x[h]", "tensors": {"x": {"shape": ["hq"], "dtype": "float32", "grad": True}}}
MORE = {"plain": {}, "o of float32": {"out_dtype": "float32"}, "gate": GATE, "packed": {"layout": "thd"}, "causal": {"mask": "causal"}}
HEADS = [(4, 4), (8, 2), (64, 1)]
LENGTHS = [(1000, 1500), (4096, 4096), (77, 3)]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("head_dim", [64, {"qk": 72, "v": 40}, 128, {"qk": 192, "v": 128}, 256], ids=str)
@pytest.mark.parametrize("name", MORE)
def test_the_formula(name, head_dim, arch):
    for deterministic, shares in itertools.product((False, True), (1, 8)):
        spec = Spec(**{"head_dim": head_dim, "dtype": "bfloat16", "backward": True, "deterministic": deterministic} | MORE[name])
        program = plan_backward(spec, arch, head_shares=shares)
        for (heads, kv_heads), (q_len, kv_len) in itertools.product(HEADS, LENGTHS):
            sizes = Sizes(batch=3, q_len=q_len, kv_len=kv_len, heads=heads, kv_heads=kv_heads, summed=(("x", heads),))
            assert allocated(program, sizes) == stated(program, sizes)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("deterministic", [False, True])
def test_nothing_grows_with_the_pairs(head_dim, arch, deterministic):
    """At 16 times the pairs there is 4 times the memory: delta, and at most one dq in float32, where blocks share no query heads."""
    program = plan_backward(Spec(head_dim=head_dim, dtype="float16", mask="causal", backward=True, deterministic=deterministic), arch)
    short, long = (Sizes(batch=1, q_len=n, kv_len=n, heads=8, kv_heads=2) for n in (20160, 80640))  # whole tiles of 64, 80, 112 and 128
    assert allocated(program, long) <= 4 * allocated(program, short)
    assert allocated(program, long) <= 8 * 80640 * (4 * head_dim + 8 + 1) + 8
