"""Conditions solved for kv_idx are the conditions they were."""

import numpy as np
import pytest
from hypothesis import given

from flashgen.errors import Position
from flashgen.expr import evaluate, fold, parse, show
from flashgen.expr.tiles.conditions import visible
from tests.expr.grammar import CORNER_MASKS, PARAMS, SCOPE
from tests.expr.grammar import conditions as random_conditions


def mask_of(text):
    return parse(text, SCOPE, Position("<mask>", 1, 1, text))


@pytest.mark.parametrize(
    ("mask", "solved"),
    [
        ("full", "kv_idx < kv_len"),
        ("causal", "kv_idx < min(q_idx + kv_len - q_len + 1, kv_len)"),
        ("causal & window(4, 0)", "(kv_idx >= q_idx + kv_len - q_len - 4) & (kv_idx < min(q_idx + kv_len - q_len + 1, kv_len))"),
        ("window(-1, -1)", "kv_idx < kv_len"),
        ("prefix(n) | causal", "kv_idx < min(max(n, q_idx + kv_len - q_len + 1), kv_len)"),
        ("abs(kv_idx - q_idx) <= n", "(kv_idx >= q_idx - n) & (kv_idx < min(n + q_idx + 1, kv_len))"),
        ("(kv_idx < lens[b]) & (q_idx < lens[b])", "kv_idx < min(where(q_idx - lens[b] < 0, lens[b], 0), kv_len)"),
        ("3 * kv_idx + 1 < q_idx - kv_idx", "kv_idx < min((q_idx - 2) // 4 + 1, kv_len)"),
        ("~(kv_idx > n)", "kv_idx < min(n + 1, kv_len)"),
        ("kv_idx == q_idx", "(kv_idx < kv_len) & (kv_idx == q_idx)"),
        ("full & ~full", "kv_idx < 0"),
        (
            "where(kv_idx < 4, kv_idx, kv_idx + n) <= q_idx",
            "(kv_idx < kv_len) & ((kv_idx < min(4, q_idx + 1)) | (kv_idx >= 4) & (kv_idx < q_idx - n + 1))",
        ),
        (
            "q_idx <= 2 * where(q_idx < n, kv_idx, 9) + 1",
            "(kv_idx >= where((q_idx - n >= 0) & (q_idx // 2 <= 9), 0, where(q_idx - n < 0, q_idx // 2, kv_len))) & (kv_idx < kv_len)",
        ),
    ],
)
def test_few_bounds(mask, solved):
    assert show(visible(fold(mask_of(mask)))) == solved


@pytest.mark.parametrize("text", CORNER_MASKS)
def test_corners(text):
    same_keys_are_visible(text)


@given(random_conditions(3))
def test_the_same_keys_are_visible(text):
    same_keys_are_visible(text)


def same_keys_are_visible(text):
    mask = mask_of(text)
    rng = np.random.default_rng(len(text))
    for q_len, kv_len in ((5, 7), (6, 2)):
        values = {p.name: p.default for p in PARAMS} | {"q_len": q_len, "kv_len": kv_len, "b": 1, "h": 2, "hk": 1}
        values |= {"q_idx": np.arange(q_len)[:, None], "kv_idx": np.arange(kv_len)[None], "lens": np.array([9, 4])}
        values |= {"ids": rng.integers(0, 3, (2, kv_len)), "flags": rng.random((4, kv_len)) < 0.5}
        expected = np.broadcast_to(evaluate(mask, values), (q_len, kv_len))
        np.testing.assert_array_equal(np.broadcast_to(evaluate(visible(fold(mask)), values), (q_len, kv_len)), expected, text)
