"""Biases up to the largest numbers of float32: kernels keep their order, equal ones weigh alike, and lse and max are theirs."""

import functools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashgen.emulate import emulate, emulate_backward
from flashgen.interpret import interpret, interpret_backward
from flashgen.plan import plan
from flashgen.plan.backward import plan_backward
from flashgen.render import render
from flashgen.spec import Spec
from tests.plan import gradients
from tests.plan.agreement import arrays, judge_of

LARGEST = float(np.finfo(np.float32).max)
ROWS, KEYS = 70, 150
SHAPES = {"t": ["b", "kv_len"], "r": ["b", "q_len"], "e": ["hq", "q_len + kv_len"]}
SCORES = {
    "keys": "s + t[b, kv_idx]",
    "distances": "s + e[h, q_idx - kv_idx + kv_len]",
    "rows": "s + r[b, q_idx]",
    "rows and keys": "s - t[b, kv_idx] + r[b, q_idx]",
    "rows and a slope": "s + r[b, q_idx] - 0.25 * kv_idx",
}
KERNELS = {"host": "float16", "sm_90a": "float16", "sm_80": "bfloat16"}
FEW = st.floats(0, LARGEST, width=32) | st.sampled_from([0.0, 1.0, 1e9, 1e30, 1e38, LARGEST / 3, LARGEST])
NUMBERS = st.lists(FEW | FEW.map(lambda x: -x), min_size=1, max_size=4)
POWERS = st.lists(st.floats(60, 127.99).map(lambda e: 2.0**e) | st.floats(60, 127.99).map(lambda e: -(2.0**e)), min_size=2, max_size=30)


@functools.cache
def planned(name: str, arch: str, split: int = 1):
    score = SCORES[name]
    tensors = {t: {"shape": shape, "dtype": "float32"} for t, shape in SHAPES.items() if f"{t}[" in score}
    more = {"split": split} if split > 1 else {}
    spec = Spec(head_dim=16, dtype=KERNELS[arch], mask="causal", score=score, tensors=tensors, outputs=["o", "lse", "max"], **more)
    chosen = plan(spec, arch)
    return chosen, None if arch == "host" else render(chosen)


def drawn(spec, numbers, share, seed):
    """A call, `share` of whose biases are some of the numbers."""
    random, extents = np.random.default_rng(seed), {"b": 2, "hq": 4, "q_len": ROWS, "kv_len": KEYS, "q_len + kv_len": ROWS + KEYS}
    values = {}
    for tensor in spec.tensors:
        x = random.standard_normal([extents[str(axis)] for axis in tensor.shape])
        values[tensor.name] = np.where(random.random(x.shape) < share, random.choice(numbers, x.shape), x).astype(np.float32)
    return *arrays(spec, 2, 4, 2, ROWS, KEYS, seed), values


def judged(name, arch, numbers, share, seed, scale=None, split=1, change=("", "")):
    chosen, source = planned(name, arch, split)
    q, k, v, values = drawn(chosen.spec, numbers, share, seed)
    values |= {} if scale is None else {"scale": scale}
    judge = judge_of(chosen.spec, q, k, v, **values)
    if source is None:
        return judge(interpret(chosen, q, k, v, values))
    assert change[0] in source.text
    return judge(emulate(chosen, replace(source, text=source.text.replace(*change)), q, k, v, values))


@pytest.mark.parametrize("arch", KERNELS)
@pytest.mark.parametrize("name", SCORES)
@settings(max_examples=settings().max_examples // 4)
@given(
    numbers=NUMBERS | POWERS,
    share=st.sampled_from([0.05, 0.5, 1.0]),
    seed=st.integers(0, 99),
    scale=st.sampled_from([None, None, 2.0**-18, 0.01, 30.0]),
)
def test_any_finite_bias(name, arch, numbers, share, seed, scale):
    judged(name, arch, numbers, share, seed, scale)


@pytest.mark.parametrize("name", ["keys", "rows"])
def test_shares_of_keys(name):
    for seed, numbers in enumerate([[LARGEST], [-LARGEST], [-LARGEST, -1e38], [3e38, 2e38, 1e30]]):
        judged(name, "sm_90a", numbers, 1.0, seed, split=2)


MUTANTS = {
    "nothing is far": ("      if (far)  ", "      if (false)  "),
    "numbers beside far ones keep their unit": ("unit = far ? 1.0f : ", "unit = "),
    "far numbers are the farthest": ("fminf(__uint_as_float(__float_as_uint(FAR) + beyond / 4), FARTHEST)", "FARTHEST"),
    "a binade stands for two": ("beyond / 4)", "beyond / 2)"),
    "of one sign": ("FARTHEST), x);", "FARTHEST), 1.0f);"),
    "a maximum stays far": ("if (!(fabsf(number) >= FAR && fabsf(number) <= FARTHEST)) return", "return"),
    "it comes back as a half": ("const u32 beyond = 4 * (", "const u32 beyond = 2 * ("),
    "a bias beside far numbers": ("!far && most - least <= SPREAD", "most - least <= SPREAD"),
}
OF_DISTANCES = ("numbers beside far ones keep their unit",)  # those of keys go to planes in one step


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants(mutant):
    calls = [([LARGEST, 1e38, -1e38, -LARGEST], 1.0), ([-LARGEST, -1e38, -2e38], 1.0), ([-LARGEST], 1.0), ([LARGEST / 3, LARGEST], 0.5)]
    for seed, (numbers, share) in enumerate(calls):
        try:
            judged("distances" if mutant in OF_DISTANCES else "keys", "sm_90a", numbers, share, seed, change=MUTANTS[mutant])
        except AssertionError:
            return
    pytest.fail("nobody notices")


def test_a_mutant_of_what_settles():
    with pytest.raises(AssertionError):
        judged("rows", "sm_90a", [LARGEST], 1.0, 0, change=("+ variant.settled_bias(", "+ 4.0f * variant.settled_bias("))


PADDED = {"head_dim": 64, "score": "s + m[b, kv_idx]", "tensors": {"m": {"shape": ["b", "kv_len"], "dtype": "float32"}}, "backward": True}


def padded(arch, dtype, low, change=("", "")):
    """A call whose padding is to the left, under a causal mask: the first rows see padding alone."""
    spec = Spec(dtype=dtype, mask="causal", **PADDED)
    m = np.where(np.arange(KEYS) < 40, np.float32(low), np.float32(0))[None].repeat(2, 0)
    arrays, program = gradients.given(spec, 2, 4, 2, KEYS, KEYS, m=m), plan_backward(spec, arch)
    if arch == "host":
        found = interpret_backward(program, arrays, {"m": m})
    else:
        source = render(program)
        assert change[0] in source.text
        found = emulate_backward(program, replace(source, text=source.text.replace(*change)), arrays, {"m": m})
    gradients.judge(spec, found, arrays, m=m)
    return found


@pytest.mark.parametrize("low", [-1e9, -LARGEST])
@pytest.mark.parametrize(("arch", "dtype"), [("host", "float16"), ("sm_80", "float16"), ("sm_90a", "bfloat16"), ("sm_90a", "float16")])
def test_rows_whose_keys_are_all_padded_have_no_part_in_gradients(arch, dtype, low):
    found = padded(arch, dtype, low)
    assert (found["dq"][:, :40] == 0).all()
    assert (found["dv"][:, 41:] != 0).any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_mutant_in_whose_gradients_they_have_a_part(dtype):
    with pytest.raises(AssertionError):
        padded("sm_90a", dtype, -1e9, change=("!(fabsf(lse) >= 0x1p24f)", "lse != -INF"))
