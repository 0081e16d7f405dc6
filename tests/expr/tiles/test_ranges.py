"""Masks as ranges of key tiles: sound against the predicate on every pair, exact for the masks in use, in bounded time."""

import dataclasses
import time

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flashgen.errors import SpecError
from flashgen.expr import analyse
from flashgen.expr.tiles import extents as pairings
from flashgen.expr.tiles.ranges import EMPTY, FULL, PARTIAL
from flashgen.expr.tiles.spans import MAX_STRIPS
from tests.expr.masks import (
    AFFINES,
    EXACT,
    FEW,
    LENGTHS,
    MANY,
    MASKS,
    ORDERS,
    PAIRED,
    RELAXED,
    TENSORS,
    TILES,
    mask_of,
    one_of,
    ranges_of,
    true_classes,
    values,
)


def check_classes(ours, truth):
    assert (truth[ours == EMPTY] == EMPTY).all(), "a tile called empty has a visible pair"
    assert (truth[ours == FULL] == FULL).all(), "a tile called full has a hidden pair"


def check_sound(text, q_len, kv_len, block_m, block_n, given_values):
    found = ranges_of(text, block_m, block_n)
    begin, end = found.evaluate(q_len, kv_len, given_values)
    assert len(found.loops) <= 3 * MAX_STRIPS
    assert (begin >= 0).all()
    assert (begin <= end).all()
    assert (end[begin < end] <= -(-kv_len // block_n)).all()
    assert (begin[1:] >= end[:-1]).all()
    ours, truth = found.classes(q_len, kv_len, given_values), true_classes(text, block_m, block_n, q_len, kv_len, given_values)
    check_classes(ours, truth)
    counts = (end - begin).sum(0)
    assert not found.uniform or len(set(counts.tolist())) <= 1
    return found, ours, truth


@MANY
@given(MASKS, LENGTHS, LENGTHS, TILES, TILES, values())
@example("abs(left) < kv_idx + left", 9, 9, 2, 2, {"left": -3})  # never negative, which intervals do not see
def test_random_masks_are_sound(text, q_len, kv_len, block_m, block_n, given_values):
    try:
        mask_of(text)
    except SpecError:  # a divisor folded to 0, a text too long
        return
    check_sound(text, q_len, kv_len, block_m, block_n, given_values)


@given(MASKS, LENGTHS, LENGTHS, TILES, TILES, values())
def test_what_a_third_of_the_rows_see(text, q_len, kv_len, block_m, block_n, given_values):
    """Warpgroups take, of what is loaded for a query tile, what their own rows see by the same code."""
    try:
        mask_of(text)
    except SpecError:
        return
    whole = ranges_of(text, 3 * block_m, block_n)
    loaded, own = (found.classes(q_len, kv_len, given_values) for found in (whole, dataclasses.replace(whole, block_m=block_m)))
    truth = true_classes(text, block_m, block_n, q_len, kv_len, given_values)
    check_classes(own, truth)
    places = np.repeat(loaded != EMPTY, 3, axis=0)[: len(own)]
    if whole.contiguous:  # else their loops are cut to those of the query tile
        places = np.maximum.accumulate(places, 1) & np.maximum.accumulate(places[:, ::-1], 1)[:, ::-1]
        assert (places | (own == EMPTY)).all()
    assert ((places & (own != EMPTY)) | (truth == EMPTY)).all()


@FEW
@given(
    one_of("kv_idx; (q_idx - kv_idx); q_idx"),
    ORDERS,
    st.integers(-2, 7),
    st.integers(1, 6),
    LENGTHS,
    TILES,
    st.integers(1, 4),
)
def test_remainders_are_sound(inner, op, bound, n, length, block_m, block_n):
    check_sound(f"{inner} % n {op} {bound}", length, length, block_m, block_n, {"n": n})
    check_sound(f"{inner} % {n} {op} {bound} + q_idx", length, length, block_m, block_n, {})


@FEW
@given(st.lists(AFFINES, min_size=1, max_size=3), one_of("<; <=; >; >=; =="), LENGTHS, LENGTHS, TILES, TILES, values())
def test_of_affine_comparisons_all_full_tiles_are_found(terms, op, q_len, kv_len, block_m, block_n, given_values):
    text = " & ".join(f"({term} {op} 0)" for term in terms)
    _, ours, truth = check_sound(text, q_len, kv_len, block_m, block_n, given_values)
    assert (ours[truth == FULL] == FULL).all()


@pytest.mark.parametrize("text", EXACT)
@FEW
@given(LENGTHS, LENGTHS, TILES, TILES, values())
def test_masks_in_use_are_exact(text, q_len, kv_len, block_m, block_n, given_values):
    given_values = given_values | {key: abs(given_values[key]) for key in ("left", "right")}
    found, ours, truth = check_sound(text, q_len, kv_len, block_m, block_n, given_values)
    assert not found.reasons
    assert (ours == truth).all(), f"\n{ours}\n\n{truth}"


@FEW
@given(LENGTHS, LENGTHS, TILES, TILES, values())
def test_what_has_no_range_is_partial_over_the_rest(q_len, kv_len, block_m, block_n, given_values):
    causal = np.minimum(ranges_of("causal", block_m, block_n).classes(q_len, kv_len, {}), PARTIAL)
    mixed = ("(ids[b, kv_idx - q_idx] == 3)", "depends on rows and on keys")
    for text, reason in (mixed, ("(kv_idx % stride == 0)", "repeats"), ("(bias[h] > 0.5)", "floats")):
        found, ours, _ = check_sound(f"causal & {text}", q_len, kv_len, block_m, block_n, given_values | {"stride": 5})
        assert (ours == causal).all()
        assert reason in found.reasons[0]


@FEW
@given(LENGTHS, TILES, TILES, st.lists(st.integers(1, 40), min_size=1, max_size=12), st.data())
def test_packed_documents_are_exact(length, block_m, block_n, sizes, data):
    """Each document lies in one piece, as packed ones do."""
    ids = np.repeat(data.draw(st.permutations(range(len(sizes)))), sizes)[:length]
    given_values = {"b": 0, "ids": np.pad(ids, (0, length - len(ids)), constant_values=-1)[None].astype(np.int32)}
    for text in ("document(ids)", "document(ids) & (kv_idx >= 3)"):
        found, ours, truth = check_sound(text, length, length, block_m, block_n, given_values)
        assert not found.reasons
        assert (ours[truth == FULL] == FULL).all()
    if (np.diff(given_values["ids"]) >= 0).all():
        _, ours, truth = check_sound("document(ids)", length, length, block_m, block_n, given_values)
        assert (ours == truth).all()


@pytest.mark.parametrize("text", PAIRED)
@RELAXED
@given(LENGTHS, LENGTHS, TILES, TILES, values(), st.sampled_from(["", "causal & ", "window(5, 2) & ", "prefix(4) | "]))
def test_what_tensors_hold_is_paired(text, q_len, kv_len, block_m, block_n, given_values, with_what):
    found, _, _ = check_sound(f"{with_what}({text})", q_len, kv_len, block_m, block_n, given_values)
    assert len(found.pairings) == 1


def test_pairs_of_tiles_are_compared_some_rows_at_a_time(monkeypatch):
    """As where there are more than a memory holds."""
    ids = np.sort(np.random.default_rng(0).integers(0, 9, (1, 500))).astype(np.int32)
    whole = ranges_of("document(ids)", 16, 16).classes(500, 500, {"b": 0, "ids": ids})
    monkeypatch.setattr(pairings, "_PAIRS_AT_ONCE", 70)
    np.testing.assert_array_equal(ranges_of("document(ids)", 16, 16).classes(500, 500, {"b": 0, "ids": ids}), whole)


def test_loops_stay_few():
    counts = {"~full": 0, "causal & document(ids)": 3, "full": 2, "causal": 2, "prefix(n) | causal": 2, "kv_idx < lens[b]": 2}
    counts |= {"window(300, 0)": 3, "window(left, right)": 3, "window(9, 0)": 2, "(kv_idx < 4) | window(300, 0)": 5}
    assert {text: len(ranges_of(text).loops) for text in counts} == counts


def test_beyond_three_ranges_the_last_are_one():
    text = " | ".join(f"((kv_idx >= {100 * i} + left) & (kv_idx < {100 * i + 20} + right))" for i in range(9))
    found, _, _ = check_sound(text, 90, 100, 16, 16, {"left": 0, "right": 0})
    assert "too many ranges" in found.reasons[0]


def test_uniform():
    same = ["full", "kv_idx < n", "~full", "kv_idx < lens[0]"]
    assert [text for text in [*same, "causal", "window(3, 0)", "kv_idx < lens[b]", "kv_idx < h"] if ranges_of(text).uniform] == same


def test_shares_json_and_text():
    found = ranges_of("causal", 2, 2)
    assert found.share(6, 6, {}) == {"empty": 3 / 9, "partial": 3 / 9, "full": 3 / 9}
    assert found.share(0, 6, {}) == {"empty": 0, "partial": 0, "full": 0}
    assert found.to_json()["loops"] == [{"begin": "0", "end": "tail", "masked": False}, {"begin": "tail", "end": "last", "masked": True}]
    assert found.to_json()["steps"]["keys_end"] == "max(0, kv_len + q_last - q_len + 1)"
    assert found.cuda().lines == (
        "const int q_last = min(q_begin + rows, p.q_len) - 1;",
        "const int keys_end = max(0, p.kv_len - p.q_len + q_last + 1);",
        "const int full_end = max(0, p.kv_len - p.q_len + q_begin + 1);",
        "const int last = (keys_end + BLOCK_N - 1) / BLOCK_N;",
        "const int tail = full_end / BLOCK_N;",
    )
    assert found.cuda().loops == (("0", "tail", False), ("tail", "last", True))


def test_a_divisor_is_checked():
    found = ranges_of("chunk(n)")
    assert found.requires == ("n",)
    with pytest.raises(ValueError, match="n is 0, but it divides: give at least 1"):
        found.evaluate(8, 8, {"n": 0})


def test_equal_masks_give_equal_ranges():
    assert ranges_of("causal & window(left, 0)") == ranges_of("causal & window(left, 0)")
    assert len({ranges_of("causal"), ranges_of("causal"), ranges_of("full")}) == 2


SUM = "(q_idx % 3 + kv_idx % 5 + b % 2 + h % 3 + hk % 2 + n % 7 + c % 4)"
HOSTILE = {
    "abs of abs": "abs(" * 25 + "kv_idx - n" + ")" * 25 + " < 3",
    "products of sums": " * ".join([SUM] * 13) + " < 1",
    "products of small quotients": " * ".join(f"((q_idx - c) // {2**29 + i})" for i in range(20)) + " < kv_idx",
    "where in where": "where(h < 1, " * 20 + "kv_idx" + ", q_idx)" * 20 + " < 3",
    "sums of where": " + ".join(f"where(h < {i}, kv_idx, {i})" for i in range(30)) + " < 3",
    "sums of max": " + ".join(f"max(h, {i} * b)" for i in range(30)) + " < kv_idx",
    "differences of max": " + ".join(f"max(h, {i} * b) - max(q_idx, {i} * n)" for i in range(15)) + " < kv_idx",
    "many ranges": " | ".join(f"((kv_idx > {i} * left) & (kv_idx < {i} * right))" for i in range(40)),
    "many unlike bounds": " & ".join(f"(kv_idx < {i} * left + {40 - i} * right)" for i in range(50)),
    "many unequal": " & ".join(f"(kv_idx != {i} * left + {i * i} * right)" for i in range(50)),
    "ors of ands": " & ".join(f"((kv_idx < left * {i}) | (kv_idx > right * {i}))" for i in range(1, 40)),
    "choices": "where(left < kv_idx, " * 12 + "causal" + ", kv_idx > n)" * 12,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_analysis_takes_bounded_time(text):
    mask = mask_of(text)
    start = time.process_time()
    found = analyse(mask, 64, 64, TENSORS)
    found.cuda()
    assert time.process_time() - start < 5
    assert len(found.loops) <= 3 * MAX_STRIPS
