"""Sums of q.k that begin at what a score adds of the key alone, or of the distance alone: a warp of the Hopper kernel brings it."""

import pytest

from tests.emulate import brought
from tests.emulate.brought import Call

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
    "a table of two ranges": (
        {**TABLE, "mask": "causal & ((kv_idx < 8) | (q_idx - kv_idx < 40))", "block": {"m": 64, "n": 32}},
        (300, 300),
    ),
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


@pytest.mark.parametrize("name", CASES)
def test_sums_begin_there(name):
    call = Call(*CASES[name])
    assert "begins_at" in call.source.text or name == "rows"
    call.judge()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["gates", "of two tensors", "a table", "warpgroups pass key tiles", "rows"])
def test_hostile_numbers(name, seed):
    Call(*CASES[name], kinds=["biases", "integers", "views"][: 1 + seed], seed=seed).judge()


FAULTS = brought.FAULTS | {
    "nobody waits for numbers": ("    if (!final) await_numbers();\n", "", "race"),
    "one tile too many": ("if (!final) begin_scores", "begin_scores", "race|no end|deadlock|phase"),
    "no second copy": (
        "        if (entry > 0) ptx::store_shared(place + COPY_BYTES + 4 * entry - 4, __float_as_uint(number));\n",
        "",
        "never written",
    ),
    "the second copy of even places": ("entry & 1 ? COPY_BYTES : 0", "entry & 1 ? 0 : COPY_BYTES", None),
    "eight rows down": ("from - 32", "from", None),
    "a range goes on with numbers of another": ("if (right != tile + 1) ", "if (right < 0) ", None),
    "numbers stay where they were": ("x[i] = x[i - FRESH];", "x[i] = x[i];", None),
    "the distance before": ("tile * BLOCK_N - entry)", "tile * BLOCK_N - entry + 1)", None),
    "rows without what they have besides": ("      settle(rows, variant, q_idx);\n", "", None),
    "no bias": ("    rows.bias = __uint_as_float(ptx::load_shared(numbers + BIAS));\n", "", None),
    "a bias in units of the score": ("__float_as_uint(bias * unit)", "__float_as_uint(bias)", None),
    "products that begin at zero": ("(K_STEP * k)),\n                      1);", "(K_STEP * k)),\n                      k > 0);", None),
}


FAULT_CASES = {"have besides": "gates", "a range": "a table of two ranges"}  # by words of a fault


@pytest.mark.parametrize("fault", FAULTS)
def test_faults(fault):
    of = next((case for word, case in FAULT_CASES.items() if word in fault), "a table of passed tiles")
    Call(*CASES[of]).find(FAULTS[fault])


PLANE_FAULTS = {
    "nobody waits for planes": ("    await_numbers();\n    take_turn", "    take_turn", "race"),
    "planes are not told to the tensor cores": ("      ptx::async_proxy_fence();\n      __syncwarp();", "      __syncwarp();", "proxy"),
    "rows that are no planes": ("ptx::store_shared(shared + NUMBERS + 4 * at, 0);", ";", "never written"),
    "planes that are not swizzled": ("(4 * lane ^ plane << 4)", "4 * lane", None),
    "the first plane alone": ("PLANES = 3", "PLANES = 1", None),
    "left and right": ("ptx::bf16x2(left, right);\n            ptx::store", "ptx::bf16x2(right, left);\n            ptx::store", None),
    "free before the product has read them": (
        "    ptx::wgmma_wait<1>();\n    release(K_EMPTY, stage(step + 1));\n    if (final) queries_read();\n    take_bias(rows);\n",
        "    take_bias(rows);\n    ptx::wgmma_wait<1>();\n    release(K_EMPTY, stage(step + 1));\n    if (final) queries_read();\n",
        "race",
    ),
}


@pytest.mark.parametrize("fault", PLANE_FAULTS)
def test_faults_of_planes(fault):
    Call(*CASES["gates"]).find(PLANE_FAULTS[fault])
