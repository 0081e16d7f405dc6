"""Masks that hide exponents on sm_90a: whether a maximum rises is asked of hidden scores too, and nothing else about them matters."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from flashgen.emulate import EmulationFault, emulate
from flashgen.plan import plan
from flashgen.render import render
from flashgen.spec import Spec
from tests.plan.agreement import arrays, judge

QUERIES, KEYS, TILE = 140, 256, 64
PAIRS = {"m": {"shape": ["q_len", "kv_len"], "dtype": "float32"}}
SEEN = {"seen": {"shape": ["q_len", "kv_len"], "dtype": "bool"}}
KEPT = {"kept": {"shape": ["b", "hq", "kv_len"], "dtype": "bool"}}
GRID = "(abs(kv_idx // 64 - q_idx // 64) <= 1) & (abs(kv_idx % 64 - q_idx % 64) <= 20)"
HEAVY = {"mask": "causal & (kept[b, h, kv_idx] | window(50, 0))", "tensors": KEPT}
BAND, PHASES = "abs(kv_idx % 600 - q_idx % 600 - 60) <= 60", "kv_idx % 3 == q_idx % 3"
SHORT, LONG = 256, 8192  # where the mask is evaluated by the attention, and where it reads bits
CASES = {  # what the spec says, for which length, and what is added to hidden scores and to some others
    "bits": ({"mask": BAND}, LONG, 300),
    "bits of no score": ({"mask": BAND}, LONG, None),
    "bits, none large": ({"mask": BAND}, LONG, 0),
    "phases, none large": ({"mask": PHASES}, SHORT, 0),
    "phases": ({"mask": PHASES}, SHORT, 300),
    "phases of no score": ({"mask": PHASES}, SHORT, None),
    "reads": ({"mask": "seen[q_idx, kv_idx]", "tensors": SEEN}, SHORT, None),
    "sums": ({"mask": BAND, "outputs": ["o", "lse", "entropy"]}, LONG, 300),
    "infinite": ({"mask": BAND}, LONG, np.inf),
    "not a number": ({"mask": PHASES}, SHORT, np.nan),
    "biased": ({"mask": BAND, "score": "s - 3.0 * abs(q_idx - kv_idx)"}, LONG, None),
    "columns": ({"mask": GRID}, SHORT, None),
    "columns, none large": ({"mask": GRID}, SHORT, 0),
    "columns of 32 keys": ({"mask": GRID, "block": {"m": 128, "n": 32}}, SHORT, 0),
    "columns by each": ({"mask": GRID, "block": {"m": 128, "n": 96}}, SHORT, 0),  # which does not divide what it is divided by
    "flags": (HEAVY, LONG, None),
    "flags, none large": (HEAVY, LONG, 0),
    "flags of 128 keys": (HEAVY | {"block": {"m": 128, "n": 128}}, LONG, 0),
    "far": ({"mask": BAND}, LONG, 3e10),
}
HIDES = "column(j))) s[j] = -INF;\n    top = fmaxf"
EXPONENT = "LATER && !variant.keep(row, column(j)) ? -INF : "
FAULTS = {
    "no exponent is hidden": ("bits, none large", EXPONENT, ""),
    "exponents of half of the columns": ("bits, none large", "LATER && ", "LATER && j % 2 && "),
    "the row below": (
        "phases, none large",
        "variant.row(q_idx + 8 * r, kv_begin + first_column());\n  const auto",
        "variant.row(q_idx, kv_begin + first_column());\n  const auto",
    ),
    "the next key tile's bits": (
        "bits, none large",
        "    softmax<false, MASKED>",
        "    if (MASKED) read<true>(elements, variant, q_idx, max(told.below(first), first) * BLOCK_N);\n    softmax<false, MASKED>",
    ),
    "no score is hidden": ("bits", HIDES, HIDES.replace("column(j)))", "column(j)) && false)")),
    "scores of a row": ("bits", HIDES, HIDES.replace("column(j)))", "column(j)) && r)")),
    "the largest of all": ("bits", "if (LATER) top[r] = hide(", "if (LATER) hide("),
    "hidden without a maximum": ("bits", "if (LATER) top[r] = hide(", "if (LATER) top[r] = -INF, hide("),
    "never hidden": ("bits", "if (LATER) top", "if (false) top"),
    "the first key tile hides exponents": ("bits", "softmax<true>(", "softmax<false, true>("),
    "columns are those of all rows": ("columns, none large", "const Row& row = rows[r];", "const Row& row = rows[0];"),
    "columns without an end": ("columns, none large", "min(keys % 8, 2)", "keys % 8"),
    "columns below and itself": ("columns, none large", "u32((1ull << (keys", "u32((2ull << (keys"),
    "flags of other threads": ("flags, none large", "- lane % 4 * 2", "- 2"),
    "flags of other keys": ("flags, none large", "lane % 2 ? nth[2] : nth[0]", "nth[0]"),
    "flags, half of them": ("flags of 128 keys", "(even >> lane % 4 / 2 & 0x55555555)", "(even >> lane % 4 / 2 & 0x5555)"),
    "flags beyond the end": ("flags, none large", "column < end && ", ""),
}
SAME = ("the first key tile hides exponents",)  # which changes nothing but the time


def case(name):
    said, length, added = CASES[name]
    said = said if not added else {"score": "s + m[q_idx, kv_idx]", "tensors": PAIRS, **said}
    pinned = {"schedule": {"rescale": "lazy"}, "block": {"m": 128, "n": TILE}}
    spec = Spec(**{"head_dim": 16, "dtype": "float16", "outputs": ["o", "lse"], **pinned, **said})
    chosen = plan(spec, "sm_90a", length=length)
    assert (chosen.dealing.listed == "mask") == (length == LONG)
    q, k, v = arrays(spec, 1, 1, 1, QUERIES, KEYS)
    random = np.random.default_rng(5)
    i, j = np.ogrid[:QUERIES, :KEYS]
    drawn = {"seen": j % 3 == i % 3, "kept": random.random((1, 1, KEYS)) < 0.3}
    values = {name: drawn[name] for name in said.get("tensors", {}) if name in drawn}
    if added == 0:
        return spec, chosen, render(chosen), (q, k, v), values
    if added is None:  # products of hidden pairs are the largest
        q[0, :, 0, :3] += 12 * (i % 3 != np.arange(3)) * (i % 4 > 0)
        k[0, :, 0, :3] += 12 * (np.arange(3) == j.T % 3)
        return spec, chosen, render(chosen), (q, k, v), values
    seen = abs(j - i - 60) <= 60 if said["mask"] == BAND else j % 3 == i % 3
    m = np.where(seen, 0, np.where(random.random(seen.shape) < 0.3, added, 0)).astype(np.float32)
    steps = 40.0 * (KEYS // TILE - j // TILE)  # from key tile to key tile
    m += np.where(seen & (random.random(seen.shape) < 0.02) & (i % 16 == 5), steps, 0).astype(np.float32)
    return spec, chosen, render(chosen), (q, k, v), {"m": m}


@pytest.mark.parametrize("name", CASES)
def test_nothing_to_find(name):
    spec, chosen, source, arrays, values = case(name)
    assert "softmax<false, MASKED>" in source.text
    judge(spec, emulate(chosen, source, *arrays, values), *arrays, **values)


@pytest.mark.parametrize("fault", FAULTS)
def test_faults(fault):
    name, old, new = FAULTS[fault]
    spec, chosen, source, arrays, values = case(name)
    assert old in source.text
    broken = replace(source, text=source.text.replace(old, new))
    with nullcontext() if fault in SAME else pytest.raises((AssertionError, EmulationFault)):
        judge(spec, emulate(chosen, broken, *arrays, values), *arrays, **values)
