"""Slopes up to what float32 holds, whose quotients by the factor of q.k it does not: kernels keep the order of keys, and lse and max."""

import functools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashgen.emulate import emulate
from flashgen.interpret import interpret
from flashgen.plan import plan
from flashgen.render import render
from flashgen.spec import Spec
from tests.plan.agreement import arrays, judge_of

ROWS, KEYS = 70, 150
TENSORS = {"a": ["hq"], "u": ["hq"], "r": ["b", "q_len"]}
SCORES = {
    "slopes": "s + a[h] * (kv_idx - q_idx)",
    "of keys": "s - a[h] * kv_idx",
    "apart": "s + a[h] * kv_idx - a[h] * q_idx",
    "of queries": "s - a[h] * q_idx + 0.25 * kv_idx",
    "of the length": "s + a[h] * (kv_idx - kv_len) + u[h]",
    "several": "s + a[h] * (3 * kv_idx - 2 * q_idx + 5) + r[b, q_idx] + 1e36",
    "params": "s + c * w * (kv_idx - q_idx)",
    "distances": "s - a[h] * abs(q_idx - kv_idx)",
}
KERNELS = {"host": ("host", "float16"), "sm_90a": ("sm_90a", "float16"), "sm_80": ("sm_80", "bfloat16"), "float32": ("sm_90a", "float32")}
FEW = ("slopes", "several")
CASES = [(name, kernel) for kernel in KERNELS for name in (SCORES if kernel in ("host", "sm_90a") else FEW)]
SIZES = st.sampled_from([0.0, 1.0, 1e9]) | st.floats(-100, 116).map(lambda e: 2.0**e)
SLOPES = st.lists(SIZES | SIZES.map(lambda x: -x), min_size=1, max_size=4)
SCALES = st.sampled_from([None, 2.0**-64, 2.0**-18, 0.01, 30.0, 2.0**64])


@functools.cache
def planned(score: str, kernel: str, constants: str = ""):
    arch, dtype = KERNELS[kernel]
    tensors = {t: {"shape": shape, "dtype": "float32"} for t, shape in TENSORS.items() if f"{t}[" in score}
    params = {name: 0.5 for name in "cw" if f"{name} *" in score}
    more = {"scale": constants} if constants else {}
    spec = Spec(head_dim=16, dtype=dtype, mask="causal", score=score, tensors=tensors, params=params, outputs=["o", "lse", "max"], **more)
    chosen = plan(spec, arch)
    return chosen, None if arch == "host" else render(chosen)


def judged(score, kernel, numbers, scale=None, seed=0, change=("", ""), **more):
    """A call, in which every third q is 0, so that nothing but slopes tells keys apart."""
    chosen, source = planned(score, kernel, **more)
    q, k, v = arrays(chosen.spec, 2, 4, 2, ROWS, KEYS, seed)
    q[:, ::3] = 0
    random, extents = np.random.default_rng(seed), {"hq": 4, "b": 2, "q_len": ROWS}
    values = {
        t.name: random.choice(numbers, [extents[axis] for axis in t.shape]).astype(np.float32) for t in chosen.spec.tensors if numbers
    }
    values |= {p.name: numbers[0] if p.name == "c" else 2.0 for p in chosen.spec.params if p.name in "cw"}
    values |= {} if scale is None else {"scale": scale}
    judge = judge_of(chosen.spec, q, k, v, roundings=2, **values)
    if source is None:
        return judge(interpret(chosen, q, k, v, values))
    assert change[0] in source.text
    return judge(emulate(chosen, replace(source, text=source.text.replace(*change)), q, k, v, values))


@pytest.mark.parametrize(("name", "kernel"), CASES)
@settings(max_examples=40)
@given(numbers=SLOPES, scale=SCALES, seed=st.integers(0, 99))
def test_any_slope(name, kernel, numbers, scale, seed):
    judged(SCORES[name], kernel, numbers, scale, seed)


@pytest.mark.parametrize("scale", ["-0.5", "0", "0.01", "1e-30", "1e30"])
@pytest.mark.parametrize("kernel", ["host", "sm_90a"])
def test_slopes_and_scales_that_are_constants(kernel, scale):
    for slope in ("1e35", "-1e35"):
        judged(f"s + {slope} * (kv_idx - q_idx)", kernel, [], constants=scale)


MUTANTS = {
    "a unit of q.k": ("unit = ptx::maximum(p.softmax_scale, 8.077936e-28f * fabsf(a_h));", "unit = p.softmax_scale;"),
    "q.k in the unit of slopes": ("fabsf(number) < 0x1p80f", "false"),
    "slopes in the unit of q.k": ("fabsf(number) < 0x1p80f", "true"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants(mutant):
    with pytest.raises(AssertionError):
        judged(SCORES["of keys"], "sm_90a", [1e35, 3e35, -1e35], 0.01, change=MUTANTS[mutant])
