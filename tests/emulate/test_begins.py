"""Sums of q.k that begin at what a score adds of the key alone, or of the distance alone: a warp of the Hopper kernel brings it."""

import numpy as np
import pytest

from flashgen.bench import hostile
from flashgen.emulate import EmulationFault, emulate
from flashgen.plan import plan
from flashgen.plan.geometry import Sizes
from flashgen.render import render
from flashgen.spec import Spec
from tests.plan.agreement import judge_of

BIAS = {"score": "s + t[b, kv_idx]", "tensors": {"t": {"shape": ["b", "kv_len"], "dtype": "float32"}}}
GATES = {
    "score": "s + g[b, h, q_idx] - g[b, h, kv_idx]",
    "tensors": {"g": {"shape": ["b", "hq", "kv_len"], "dtype": "bfloat16"}},
}
TABLE = {"score": "s + t[h, q_idx - kv_idx + kv_len - 1]", "tensors": {"t": {"shape": ["hq", "2 * kv_len - 1"], "dtype": "float32"}}}
BUCKETS = {
    "score": "s - 0.25 * abs(q_idx - kv_idx) + t[min(abs(q_idx - kv_idx) // 8, 15), h]",
    "tensors": {"t": {"shape": [16, "hq"], "dtype": "float16"}},
}
SHARED = {"score": "s + t[hk, kv_idx] - n[kv_idx] / 64.0", "tensors": {
    "t": {"shape": ["hk", "kv_len"], "dtype": "float16"}, "n": {"shape": ["kv_len"], "dtype": "int32"}}}  # fmt: skip
CASES = {  # q_len, kv_len
    "a bias": ({**BIAS, "mask": "causal", "block": {"m": 128, "n": 64}, "stages": 2}, (200, 331)),
    "of two tensors": ({**SHARED, "block": {"m": 64, "n": 80}}, (70, 250)),
    "gates": ({**GATES, "mask": "causal", "block": {"m": 64, "n": 32}}, (150, 150)),
    "warpgroups pass key tiles": ({**BIAS, "mask": "window(60, 0)", "block": {"m": 192, "n": 32}}, (400, 400)),
    "a table": ({**TABLE, "mask": "causal", "block": {"m": 128, "n": 80}}, (200, 331)),
    "buckets": ({**BUCKETS, "block": {"m": 64, "n": 64}}, (150, 70)),
    "a table of passed tiles": ({**TABLE, "mask": "window(60, 9)", "block": {"m": 192, "n": 32}}, (400, 400)),
    "o leaves by keys": ({**TABLE, "head_dim": 128, "block": {"m": 128, "n": 128}, "mask": "causal"}, (300, 300)),
    "shares": ({**BIAS, "split": 2}, (64, 700)),
    "packed": ({**BIAS, "mask": "causal", "layout": "thd", "block": {"m": 64, "n": 64}}, (150, 170)),
    "pages": ({**TABLE, "mask": "causal", "cache": {"page": 16}, "block": {"m": 64, "n": 64}}, (70, 160)),
    "rows": (
        {"score": "s + t[b, q_idx]", "tensors": {"t": {"shape": ["b", "q_len"], "dtype": "float32"}}, "softmax": {"sink": "0.5"}},
        (70, 90),
    ),
    "one query, no keys": ({**BIAS, "block": {"m": 64, "n": 64}}, (65, 0)),
}


def drawn(said, lengths, kinds=()):
    spec = Spec(**{"head_dim": 64, "dtype": "bfloat16", "outputs": ["o", "lse"], **said})
    return spec, *hostile.draw(spec, Sizes(2, *lengths, 4, 2), kinds, np.random.RandomState(0))


@pytest.mark.parametrize("name", CASES)
def test_sums_begin_there(name):
    spec, q, k, v, values = drawn(*CASES[name])
    chosen = plan(spec, "sm_90a")
    source = render(chosen)
    assert "begins_at" in source.text or name == "rows"
    judge_of(spec, q, k, v, **values)(emulate(chosen, source, q, k, v, values))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["gates", "of two tensors", "a table", "warpgroups pass key tiles", "rows"])
def test_hostile_numbers(name, seed):
    said, lengths = CASES[name]
    spec = Spec(**{"head_dim": 64, "dtype": "bfloat16", "outputs": ["o", "lse"], **said})
    kinds = ["biases", "integers", "views"][: 1 + seed]
    q, k, v, values = hostile.draw(spec, Sizes(2, *lengths, 4, 2), kinds, np.random.RandomState(seed))
    chosen = plan(spec, "sm_90a")
    judge_of(spec, q, k, v, **values)(emulate(chosen, render(chosen), q, k, v, values))


FAULTS = {  # what the emulator says of it, or nothing: the result is wrong
    "nobody waits for numbers": ("    if (!final) await_numbers();\n", "", "race"),
    "the warp does not wait for a place": (
        "      ptx::mbarrier_wait(shared + NUMBERS_EMPTY + BARRIER_BYTES * stage, parity);\n",
        "",
        "race|deadlock",
    ),
    "one tile too many": ("if (!final) begin_scores", "begin_scores", "race|no end|deadlock|phase"),
    "passed tiles keep their place": ("      await_numbers();\n      pass_numbers();\n", "", "race|no end|deadlock|phase"),
    "lanes do not meet": (
        "      __syncwarp();\n      if (lane == 0) ptx::mbarrier_arrive(shared + NUMBERS_FULL",
        "      if (lane == 0) ptx::mbarrier_arrive(shared + NUMBERS_FULL",
        "race",
    ),
    "no second copy": ("        if (entry > 0) ptx::store_shared(place + COPY_BYTES + 4 * entry - 4, word);\n", "", "never written"),
    "the second copy of even places": ("entry & 1 ? COPY_BYTES : 0", "entry & 1 ? 0 : COPY_BYTES", None),
    "eight rows down": ("from - 32", "from", None),
    "the distance before": ("tile * BLOCK_N - entry)", "tile * BLOCK_N - entry + 1)", None),
    "rows without what they have besides": ("      settle(rows, variant, q_idx);\n", "", None),
    "no bias": ("    rows.bias = __uint_as_float(ptx::load_shared(numbers + BIAS));\n", "", None),
    "a bias in units of the score": ("__float_as_uint(bias * variant.unit)", "__float_as_uint(bias)", None),
    "products that begin at zero": ("(K_STEP * k)),\n                      1);", "(K_STEP * k)),\n                      k > 0);", None),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults(fault):
    old, new, message = FAULTS[fault]
    spec, q, k, v, values = drawn(*CASES["gates" if "settle" in old else "a table of passed tiles"])
    chosen = plan(spec, "sm_90a")
    source = render(chosen)
    assert old in source.text
    broken = type(source)(source.name, source.text.replace(old, new), source.arch, source.entries, source.options)
    if message:
        with pytest.raises(EmulationFault, match=message):
            emulate(chosen, broken, q, k, v, values)
        return
    with pytest.raises(AssertionError):
        judge_of(spec, q, k, v, **values)(emulate(chosen, broken, q, k, v, values))
