"""The query tiles of a key tile: sound against the predicate on every pair, exact for the masks in use."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashgen.errors import SpecError
from flashgen.expr.tiles.ranges import EMPTY, FULL, PARTIAL
from flashgen.expr.tiles.spans import MAX_STRIPS
from tests.expr.masks import EXACT, LENGTHS, MASKS, PAIRED, RELAXED, TILES, mask_of, ranges_of, rows_of, split, values, visible

VERY_FEW = settings(RELAXED, max_examples=5)


def true_classes(text, block_m, block_n, q_len, kv_len, given_values):
    """A tile that hangs over the last key or the last row needs its mask."""
    pairs = visible(text, q_len, kv_len, given_values)
    classes = np.zeros((-(-kv_len // block_n), -(-q_len // block_m)), np.int8)
    for j, i in np.ndindex(classes.shape):
        tile = pairs[i * block_m : (i + 1) * block_m, j * block_n : (j + 1) * block_n]
        whole = tile.shape == (block_m, block_n)
        classes[j, i] = FULL if tile.all() and whole else PARTIAL if tile.any() else EMPTY
    return classes


def check_sound(text, q_len, kv_len, block_m, block_n, given_values):
    found = rows_of(text, block_m, block_n)
    begin, end = found.evaluate(q_len, kv_len, given_values)
    assert len(found.loops) <= 3 * MAX_STRIPS
    assert (begin >= 0).all()
    assert (begin <= end).all()
    assert (end[begin < end] <= -(-q_len // block_m)).all()
    assert (begin[1:] >= end[:-1]).all()
    ours, truth = found.classes(q_len, kv_len, given_values), true_classes(text, block_m, block_n, q_len, kv_len, given_values)
    assert (truth[ours == EMPTY] == EMPTY).all(), "a tile called empty has a visible pair"
    assert (truth[ours == FULL] == FULL).all(), "a tile called full has a hidden pair"
    counts = (end - begin).sum(0)
    assert not found.uniform or len(set(counts.tolist())) <= 1
    return found, ours, truth


@given(MASKS, LENGTHS, LENGTHS, TILES, TILES, values())
def test_random_masks_are_sound(text, q_len, kv_len, block_m, block_n, given_values):
    try:
        mask_of(text)
    except SpecError:  # a divisor folded to 0, a text too long
        return
    check_sound(text, q_len, kv_len, block_m, block_n, given_values)


# A tile of keys that no row sees beside keys that some see, or that one row sees here and another there, is not told from one that is seen.
LOOSE = split(
    """causal & (kv_idx >= n); prefix(n) | window(left, right); (kv_idx < 4) | window(left, right); (kv_idx < 4) | window(9, 3);
    causal & ((kv_idx < 4) | window(left, 0))"""
)


@pytest.mark.parametrize("text", [text for text in EXACT if text not in LOOSE])
@VERY_FEW
@given(LENGTHS, LENGTHS, TILES, TILES, values())
def test_masks_in_use_are_exact(text, q_len, kv_len, block_m, block_n, given_values):
    given_values = given_values | {key: abs(given_values[key]) for key in ("left", "right")}
    found, ours, truth = check_sound(text, q_len, kv_len, block_m, block_n, given_values)
    assert not found.reasons
    assert (ours == truth).all(), f"\n{ours}\n\n{truth}"


@pytest.mark.parametrize("text", PAIRED)
@VERY_FEW
@given(LENGTHS, LENGTHS, TILES, TILES, values(), st.sampled_from(["", "causal & ", "window(5, 2) & ", "prefix(4) | "]))
def test_what_tensors_hold_is_paired(text, q_len, kv_len, block_m, block_n, given_values, with_what):
    found, _, _ = check_sound(f"{with_what}({text})", q_len, kv_len, block_m, block_n, given_values)
    assert len(found.pairings) == 1


def test_rows_of_packed_documents_are_exact():
    ids = np.repeat(np.int32([[0, 1, 2, 5]]), [30, 1, 57, 40], axis=1)
    for text in ("document(ids)", "causal & document(ids)"):
        found, ours, truth = check_sound(text, 128, 128, 16, 16, {"b": 0, "ids": ids})
        assert not found.reasons
        assert (ours == truth).all()


def test_a_pairing_is_told_as_in_the_spec():
    """Whichever side is unknown."""
    texts = [found.pairings[0].text for found in (rows_of("ids[b, kv_idx] <= ids[b, q_idx]"), ranges_of("ids[b, kv_idx] <= ids[b, q_idx]"))]
    assert texts == ["ids[b, kv_idx] <= ids[b, q_idx]"] * 2
    (text,) = rows_of("document(ids)").cuda().pairings
    assert (text.known, text.may) == ("p.arg_ids(batch, kv_idx)", "row.x <= high && low <= row.y")


def test_the_text_of_causal():
    text = rows_of("causal", 64, 128).cuda()
    assert text.lines == (
        "const int k_last = min(k_begin + BLOCK_N, p.kv_len) - 1;",
        "const int rows_begin = max(0, k_begin - p.kv_len + p.q_len);",
        "const int full_begin = max(0, k_last - p.kv_len + p.q_len);",
        "const int full_end = k_begin + BLOCK_N <= p.kv_len ? p.q_len : 0;",
        "const int first = rows_begin / BLOCK_M;",
        "const int last = (p.q_len + BLOCK_M - 1) / BLOCK_M;",
        "const int body = (full_begin + BLOCK_M - 1) / BLOCK_M;",
        "const int tail = max(body, full_end / BLOCK_M);",
    )
    assert text.loops == (("first", "body", True), ("body", "tail", False), ("tail", "last", True))
