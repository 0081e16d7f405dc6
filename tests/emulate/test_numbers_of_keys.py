"""Numbers that tensors hold at the keys of a tile, the same for all rows: a warp of the Hopper kernel brings them to shared memory."""

import pytest

from tests.emulate import brought
from tests.emulate.brought import Call

SCALED = {"score": "s * t[b, kv_idx]", "tensors": {"t": {"shape": ["b", "kv_len"], "dtype": "float32"}}}
TWO = {
    "score": "s * w[b, hk, kv_idx] - n[kv_idx] / 64.0",
    "tensors": {"w": {"shape": ["b", "hk", "kv_len"], "dtype": "float16"}, "n": {"shape": ["kv_len"], "dtype": "int32"}},
}
GATES = {
    "score": "s * g[b, h, q_idx] - g[b, h, kv_idx]",
    "tensors": {"g": {"shape": ["b", "hq", "kv_len"], "dtype": "bfloat16"}},
}
CASES = {  # q_len, kv_len
    "a factor": ({**SCALED, "mask": "causal", "block": {"m": 128, "n": 64}, "stages": 2}, (200, 331)),
    "of two tensors": ({**TWO, "block": {"m": 64, "n": 80}}, (70, 250)),
    "gates": ({**GATES, "mask": "causal", "block": {"m": 64, "n": 32}}, (150, 150)),
    "warpgroups pass key tiles": ({**SCALED, "mask": "window(60, 0)", "block": {"m": 192, "n": 32}}, (400, 400)),
    "hidden values": ({**SCALED, "mask": "causal & window(100, 0)", "block": {"m": 128, "n": 64}}, (30, 300)),
    "o leaves by keys": ({**SCALED, "head_dim": 128, "block": {"m": 128, "n": 128}, "mask": "causal"}, (300, 300)),
    "shares": ({**SCALED, "split": 2}, (64, 700)),
    "packed": ({**SCALED, "mask": "causal", "layout": "thd", "block": {"m": 64, "n": 64}}, (150, 170)),
    "pages": ({**SCALED, "mask": "causal", "cache": {"page": 16}, "block": {"m": 64, "n": 64}}, (70, 160)),
    "one query, no keys": ({**SCALED, "block": {"m": 64, "n": 64}}, (65, 0)),
}


@pytest.mark.parametrize("name", CASES)
def test_scores_take_them_in(name):
    call = Call(*CASES[name])
    assert "bring_numbers" in call.source.text
    call.judge()


@pytest.mark.parametrize(("name", "kinds"), [("gates", ["biases", "views"]), ("of two tensors", ["integers", "axes", "views"])])
def test_hostile_numbers(name, kinds):
    Call(*CASES[name], kinds=kinds).judge()


FAULTS = brought.FAULTS | {
    "nobody waits for numbers": ("    await_numbers();\n    score_tile", "    score_tile", "race"),
    "places are told free by one warp": ("NUMBERS_EMPTY, NUMBER_STAGES, 4 * WARPGROUPS)", "NUMBERS_EMPTY, NUMBER_STAGES, 1)", "race|phase"),
    "the other lane's": ("column % 8 / 2 * LANE_NUMBERS", "column % 4 / 2 * LANE_NUMBERS", "never written"),
    "the other element's": ("i / 4 % 2 * 2 + (i & 1); }\n\n// One warp", "i / 4 % 2 * 2; }\n\n// One warp", None),
    "of the tile before": (
        "variant.row(work.block * BLOCK_M, tile * BLOCK_N);",
        "variant.row(work.block * BLOCK_M, (tile + 1) * BLOCK_N);",
        None,
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults(fault):
    Call(*CASES["warpgroups pass key tiles"]).find(FAULTS[fault])
