"""Weights that the key alone decides, the same for all rows: a warp of the Hopper kernel brings them to shared memory."""

import numpy as np
import pytest

from flashgen.plan import plan
from flashgen.spec import Spec
from tests.emulate import brought
from tests.emulate.brought import Call

KEYS = {"weight": "w[b, kv_idx]", "tensors": {"w": {"shape": ["b", "kv_len"], "dtype": "float32"}}}
GATES = {"g": {"shape": ["b", "hq", "kv_len"], "dtype": "bfloat16"}, "w": {"shape": ["b", "hk", "kv_len"], "dtype": "float16"}}
CASES = {  # q_len, kv_len
    "of a key": ({**KEYS, "mask": "causal", "block": {"m": 128, "n": 64}, "stages": 2}, (200, 331)),
    "of a head's key": ({"weight": "exp(-abs(w[b, hk, kv_idx]))", "tensors": {"w": GATES["w"]}, "block": {"m": 64, "n": 80}}, (70, 250)),
    "of a row and a key": (
        {"weight": "g[b, h, q_idx] * g[b, h, kv_idx]", "tensors": {"g": GATES["g"]}, "block": {"m": 64, "n": 32}},
        (150, 150),
    ),
    "sums begin at keys": (
        {"score": "s - g[b, h, kv_idx]", "weight": "w[b, hk, kv_idx]", "tensors": GATES, "mask": "causal", "block": {"m": 128, "n": 64}},
        (200, 200),
    ),
    "sums begin at distances": (
        {**KEYS, "score": "s - abs(q_idx - kv_idx) * 0.1", "mask": "window(90, 60)", "block": {"m": 64, "n": 64}},
        (150, 200),
    ),
    "scores take in numbers": (
        {"score": "s * w[b, hk, kv_idx]", "weight": "g[b, h, kv_idx]", "tensors": GATES, "mask": "causal"},
        (200, 300),
    ),
    "scores take in a tile": (
        {
            "score": "s + x[h, q_idx, kv_idx]",
            "weight": "w[b, hk, kv_idx]",
            "tensors": {"x": {"shape": ["hq", "q_len", "kv_len"], "dtype": "bfloat16"}, "w": GATES["w"]},
            "block": {"m": 64, "n": 64},
        },
        (70, 160),
    ),
    "warpgroups pass key tiles": ({**KEYS, "mask": "window(60, 0)", "block": {"m": 192, "n": 32}}, (400, 400)),
    "of scores themselves": ({**KEYS, "softmax": "none", "outputs": ["o"], "mask": "causal"}, (70, 200)),
    "shares": ({**KEYS, "split": 2}, (64, 700)),
    "packed": ({**KEYS, "mask": "causal", "layout": "thd", "block": {"m": 64, "n": 64}}, (150, 170)),
    "pages": ({**KEYS, "mask": "causal", "cache": {"page": 16}, "block": {"m": 64, "n": 64}}, (70, 160)),
    "float16": ({**KEYS, "dtype": "float16", "mask": "causal", "block": {"m": 64, "n": 64}}, (130, 130)),
    "one query, no keys": ({**KEYS, "block": {"m": 64, "n": 64}}, (65, 0)),
}


@pytest.mark.parametrize("name", CASES)
def test_weights_are_brought(name):
    call = Call(*CASES[name])
    assert "weight_of" in call.source.text
    call.judge()


@pytest.mark.parametrize("name", ["of a key", "of a row and a key", "sums begin at keys"])
def test_weights_of_hidden_keys_may_be_anything(name):
    said, lengths = CASES[name]
    call = Call({**said, "mask": "causal & (kv_idx % 5 != 1)"}, lengths)
    rest = call.arrays[3]
    for tensor in {"w", "g"} & set(rest):
        rest[tensor][..., 1::10], rest[tensor][..., 6::10] = np.nan, np.inf
    call.judge()


def test_a_weight_that_is_not_finite_reaches_the_rows_that_see_it():
    call = Call(*CASES["of a key"])
    call.arrays[3]["w"][0, 150], call.arrays[3]["w"][1, 300] = np.inf, np.nan
    call.judge()


@pytest.mark.parametrize(("dtype", "threshold"), [("bfloat16", 8.0), ("float16", 0.0)])
def test_exponentials_that_wait_leave_room_for_weights(dtype, threshold):
    found = plan(Spec(**KEYS, head_dim=64, dtype=dtype), "sm_90a").softmax
    assert (found.rescale, found.threshold) == ("lazy", threshold)


FAULTS = brought.FAULTS | {
    "nobody waits for weights": ("    await_numbers();\n    ptx::wgmma_wait<1>", "    ptx::wgmma_wait<1>", "race|phase"),
    "places are told free by one warp": ("NUMBERS_EMPTY, NUMBER_STAGES, 4 * WARPGROUPS)", "NUMBERS_EMPTY, NUMBER_STAGES, 1)", "race|phase"),
    "the other element's": ("i / 4 % 2 * 2 + (i & 1); }", "i / 4 % 2 * 2; }", None),
    "of the tile before": ("weight_of(tile * BLOCK_N", "weight_of((tile + 1) * BLOCK_N", None),
    "places are free before weights are read": (
        "    each_number(numbers + FACTORS",
        "    pass_numbers();\n    each_number(numbers + FACTORS",
        "race|phase|deadlock",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults(fault):
    Call(*CASES["warpgroups pass key tiles"]).find(FAULTS[fault])


def test_what_is_not_finite_is_a_factor_of_what_is_seen_alone():
    call = Call(*CASES["of a key"])
    call.arrays[3]["w"][0, 150] = np.inf
    call.find(("    if (!ptx::load_shared(numbers + ORDINARY))", "    if (false)", None))
    call.find(("!finite(weight) && s[j] != 0.0f", "!finite(weight)", None))
