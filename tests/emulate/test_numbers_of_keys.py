"""Numbers that tensors hold at the keys of a tile, the same for all rows: a warp of the Hopper kernel brings them to shared memory."""

import numpy as np
import pytest

from flashgen.bench import hostile
from flashgen.emulate import EmulationFault, emulate
from flashgen.plan import plan
from flashgen.plan.geometry import Sizes
from flashgen.render import render
from flashgen.spec import Spec
from tests.plan.agreement import judge_of

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


def drawn(said, lengths, kinds=()):
    spec = Spec(**{"head_dim": 64, "dtype": "bfloat16", "outputs": ["o", "lse"], **said})
    return spec, *hostile.draw(spec, Sizes(2, *lengths, 4, 2), kinds, np.random.RandomState(0))


@pytest.mark.parametrize("name", CASES)
def test_scores_take_them_in(name):
    spec, q, k, v, values = drawn(*CASES[name])
    chosen = plan(spec, "sm_90a")
    source = render(chosen)
    assert "bring_numbers" in source.text
    judge_of(spec, q, k, v, **values)(emulate(chosen, source, q, k, v, values))


@pytest.mark.parametrize(("name", "kinds"), [("gates", ["biases", "views"]), ("of two tensors", ["integers", "axes", "views"])])
def test_hostile_numbers(name, kinds):
    spec, q, k, v, values = drawn(*CASES[name], kinds)
    chosen = plan(spec, "sm_90a")
    judge_of(spec, q, k, v, **values)(emulate(chosen, render(chosen), q, k, v, values))


FAULTS = {  # what the emulator says of it, or nothing: the result is wrong
    "nobody waits for numbers": ("    await_numbers();\n    score_tile", "    score_tile", "race"),
    "the warp does not wait for a stage": (
        "      ptx::mbarrier_wait(shared + NUMBERS_EMPTY + BARRIER_BYTES * stage, parity);\n",
        "",
        "race|deadlock",
    ),
    "places are told free by one warp": ("NUMBERS_EMPTY, NUMBER_STAGES, 4 * WARPGROUPS)", "NUMBERS_EMPTY, NUMBER_STAGES, 1)", "race|phase"),
    "passed tiles keep their stage": ("      await_numbers();\n      pass_numbers();\n", "", "race|no end|deadlock|phase"),
    "lanes do not meet": (
        "      __syncwarp();\n      if (lane == 0) ptx::mbarrier_arrive(shared + NUMBERS_FULL",
        "      if (lane == 0) ptx::mbarrier_arrive(shared + NUMBERS_FULL",
        "race",
    ),
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
    old, new, message = FAULTS[fault]
    spec, q, k, v, values = drawn(*CASES["warpgroups pass key tiles"])
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
