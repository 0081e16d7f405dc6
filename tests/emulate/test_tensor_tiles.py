"""Elements of tensors at the queries and keys of a tile: each warp of the Hopper kernel copies its own to shared memory."""

import numpy as np
import pytest

from flashgen.plan import plan
from flashgen.spec import Spec
from tests.emulate.brought import Call, Fault

BIAS = {"score": "s + bias[h, q_idx, kv_idx]", "tensors": {"bias": {"shape": ["hq", "q_len", "kv_len"], "dtype": "bfloat16"}}}
SHARED = {"score": "2.0 * tanh(s) + pair[q_idx, b, kv_idx]", "tensors": {"pair": {"shape": ["q_len", "b", "kv_len"], "dtype": "float16"}}}
WHOLE = {"score": "s + bias[h, q_idx, kv_idx]", "tensors": {"bias": {"shape": ["hq", "q_len", "kv_len"], "dtype": "float32"}}}
CASES = {  # q_len, kv_len: rows of whole chunks of 16 bytes, of words, and of neither
    "chunks": ({**BIAS, "mask": "causal", "block": {"m": 128, "n": 64}, "stages": 2}, (200, 328)),
    "words": ({**BIAS, "block": {"m": 64, "n": 80}}, (70, 250)),
    "odd rows": ({**BIAS, "mask": "causal", "block": {"m": 128, "n": 48}}, (150, 151)),
    "float16": ({**SHARED, "head_dim": 128, "block": {"m": 128, "n": 96}}, (130, 203)),
    "float32": ({**WHOLE, "mask": "causal", "block": {"m": 128, "n": 48}}, (200, 328)),
    "float32, elements": ({**WHOLE, "block": {"m": 64, "n": 160}}, (70, 250)),
    "float32, head dim 128": ({**WHOLE, "head_dim": 128, "block": {"m": 128, "n": 64}}, (70, 136)),
    "warpgroups pass key tiles": ({**BIAS, "mask": "window(60, 0)", "block": {"m": 192, "n": 32}}, (400, 400)),
    "hidden values": ({**BIAS, "mask": "causal & window(100, 0)", "block": {"m": 128, "n": 64}}, (30, 304)),
    "shares": ({**BIAS, "split": 2}, (64, 704)),
    "pages": ({**BIAS, "mask": "causal", "cache": {"page": 16}, "block": {"m": 64, "n": 64}}, (70, 160)),
    "one query, no keys": ({**BIAS, "block": {"m": 64, "n": 64}}, (65, 0)),
}


@pytest.mark.parametrize("name", CASES)
def test_scores_take_them_in(name):
    call = Call(*CASES[name])
    assert "copy_rows" in call.source.text
    call.judge()


@pytest.mark.parametrize("name", ["chunks", "words", "odd rows", "float16", "float32", "float32, elements"])
@pytest.mark.parametrize("kinds", [("biases",), ("views", "axes")])
def test_hostile_tensors(name, kinds):
    Call(*CASES[name], kinds=kinds).judge()


@pytest.mark.parametrize("arranged", ["transposed", "from an odd element on", "wider rows"])
def test_arrays_as_they_lie(arranged):
    call = Call(*CASES["chunks"])
    *_, values = call.arrays
    bias = values["bias"]
    heads, rows, keys = bias.shape
    if arranged == "transposed":
        values["bias"] = np.ascontiguousarray(bias.swapaxes(1, 2)).swapaxes(1, 2)
    else:
        before, behind = (1, 7) if arranged == "from an odd element on" else (0, 3)
        wide = np.zeros((heads, rows, before + keys + behind), bias.dtype)
        wide[:, :, before : before + keys] = bias
        values["bias"] = wide[:, :, before : before + keys]
    call.judge()


@pytest.mark.parametrize("mask", ["(kv_idx < 64) | (causal & window(100, 0))", "abs(q_idx - kv_idx) > 1000", "causal & document(ids)"])
def test_threads_read_what_is_not_taken_tile_by_tile_or_is_the_masks(mask):
    tensors = BIAS["tensors"] | ({"ids": {"shape": ["b", "kv_len"], "dtype": "int32"}} if "ids" in mask else {})
    found = plan(Spec(head_dim=64, dtype="bfloat16", **{**BIAS, "mask": mask, "tensors": tensors}), "sm_90a").holes
    assert found.tile is None
    assert found.reads


FAULTS: dict[str, Fault] = {
    "copies are not awaited": ("    ptx::copy_wait<1>();", "    ptx::copy_wait<2>();", "race|never waited"),
    "of the rows below": ("(warpgroup * WARPGROUP_ROWS + warp * 16) * PITCH", "(warpgroup * WARPGROUP_ROWS + warp * 8) * PITCH", "race"),
    "the other 8 columns": ("lane % 16 * PITCH + lane / 16 * 16", "lane % 16 * PITCH", None),
    "one place": ("(tile & 1) * TENSOR_BYTES", "0 * TENSOR_BYTES", "race"),
    "the tile before": ("q_idx - lane / 4, tile * BLOCK_N);", "q_idx - lane / 4, max(tile - 1, 0) * BLOCK_N);", None),
    "rows of another warp": ("q_idx - lane / 4, tile", "q_idx, tile", None),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults(fault):
    Call(*CASES["warpgroups pass key tiles"]).find(FAULTS[fault])


def test_a_shift_that_is_forgotten():
    Call(*CASES["odd rows"]).find(("shift(rows[j % 2].bias_row) * 16", "0", None))
