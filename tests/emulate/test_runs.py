"""Masks that ask whether keys hold a row's number: a row whose keys follow each other knows them; else each key is looked at."""

import dataclasses
import functools

import numpy as np
import pytest

from flashgen.emulate import emulate
from flashgen.plan import plan
from flashgen.render import render
from flashgen.spec import Spec
from tests.emulate.test_forward import check

IDS = {"ids": {"shape": ["b", "kv_len"], "dtype": "int32"}}
BY_HEAD = {"ids": {"shape": ["hk", "kv_len"], "dtype": "int32"}, "own": {"shape": ["hk", "q_len"], "dtype": "int32"}}
SPECS = {
    "causal": {"mask": "causal & document(ids)", "tensors": IDS, "block": {"m": 128, "n": 128}},
    "all keys": {"mask": "document(ids)", "tensors": IDS, "block": {"m": 192, "n": 48}},
    "window": {"mask": "window(90, 20) & document(ids)", "tensors": IDS, "block": {"m": 64, "n": 80}},
    "one number": {"mask": "causal & (ids[b, kv_idx] == 2)", "tensors": IDS, "block": {"m": 128, "n": 64}},
    "where sums begin": {"mask": "document(ids)", "score": "s + 0.01 * ids[b, kv_idx]", "tensors": IDS, "block": {"m": 128, "n": 64}},
    "other numbers": {"mask": "ids[hk, kv_idx] == own[hk, q_idx]", "tensors": BY_HEAD, "block": {"m": 128, "n": 96}},
}
HELD = ("documents", "short documents", "in turns", "padding at both ends", "anything")


def numbers(held, keys, rng):
    """The numbers that a tensor holds at so many keys."""
    at = np.arange(keys)
    return {
        "documents": (at + 60) // 133,
        "short documents": np.cumsum(rng.random(keys) < 0.05),
        "in turns": at // 20 % 3,
        "padding at both ends": np.where((at < 30) | (at >= keys - 50), -1, at // 140),
        "anything": rng.integers(0, 4, keys),
    }[held]


@functools.cache
def planned(name):
    chosen = plan(Spec(head_dim=16, dtype="float16", **SPECS[name], outputs=["o", "lse"]), "sm_90a")
    return chosen, render(chosen)


def arrays(q_len, kv_len, held, seed=0):
    """q, k, v of two sequences, four query heads and two of keys; what tensors hold at keys, and at queries."""
    rng = np.random.default_rng(seed)
    qkv = [rng.standard_normal((2, n, heads, 16)).astype(np.float16) for n, heads in ((q_len, 4), (kv_len, 2), (kv_len, 2))]
    ids = np.stack([numbers(held, kv_len, rng) for _ in range(2)]).astype(np.int32)
    return qkv, ids, ids[:, np.arange(q_len) % max(1, kv_len)] if kv_len else np.zeros((2, q_len), np.int32)


def values(name, ids, own):
    return {"ids": ids} if SPECS[name]["tensors"] is IDS else {"ids": ids, "own": own}


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("name", SPECS)
def test_rows_see_their_own(name, held):
    chosen, source = planned(name)
    assert chosen.holes.mask.runs
    for q_len, kv_len in ((200, 330), (333, 333)):
        (q, k, v), *tensors = arrays(q_len, kv_len, held)
        given = values(name, *tensors)
        check(chosen.spec, emulate(chosen, source, q, k, v, given), q, k, v, **given)


@pytest.mark.parametrize("name", SPECS)
def test_without_keys(name):
    chosen, source = planned(name)
    (q, k, v), *tensors = arrays(70, 0, "documents")
    given = values(name, *tensors)
    check(chosen.spec, emulate(chosen, source, q, k, v, given), q, k, v, **given)


def test_rows_look_for_themselves_where_looks_do_not_suffice():
    chosen, source = planned("all keys")
    fewer = dataclasses.replace(source, text=source.text.replace("looks = 64", "looks = 3"))
    (q, k, v), ids, _ = arrays(333, 333, "short documents")
    check(chosen.spec, emulate(chosen, fewer, q, k, v, {"ids": ids}), q, k, v, ids=ids)


@pytest.mark.parametrize(("old", "new", "held"), [
    ("next == run.y ? beyond : run.z", "beyond", "documents"),
    ("looks && to - from <= count", "looks", "padding at both ends"),
    ("inside / 8 * 2", "inside / 8", "documents"),
    ("held[r].y - kv_begin)", "held[r].y)", "documents"),
    ("seen[r] & columns(rows[r])", "seen[r]", "in turns"),
    ("borders < 2", "borders < 3", "short documents"),
])  # fmt: skip
def test_planted_faults(old, new, held):
    chosen, source = planned("all keys")
    assert old in source.text
    wrong = dataclasses.replace(source, text=source.text.replace(old, new))
    (q, k, v), ids, _ = arrays(333, 333, held)
    with pytest.raises(AssertionError):
        check(chosen.spec, emulate(chosen, wrong, q, k, v, {"ids": ids}), q, k, v, ids=ids)


@pytest.mark.parametrize("mask", [
    "document(ids) | prefix(20)", "~document(ids)", "document(ids) & (kv_idx % 3 == 0)", "ids[b, kv_idx] <= ids[b, q_idx]",
    "document(ids) & (ids[b, kv_idx] > 0)",
])  # fmt: skip
def test_other_masks_compare_each_key(mask):
    assert not plan(Spec(head_dim=64, dtype="bfloat16", mask=mask, tensors=IDS), "sm_90a", length=512).holes.mask.runs


def test_scores_that_read_the_same_compare_each_key():
    spec = Spec(head_dim=64, dtype="bfloat16", mask="document(ids)", score="tanh(s) + 0.5 * ids[b, kv_idx]", tensors=IDS)
    assert not plan(spec, "sm_90a").holes.mask.runs


def test_tiles_of_more_keys_compare_each():
    spec = Spec(head_dim=64, dtype="bfloat16", mask="document(ids)", tensors=IDS, block={"m": 64, "n": 160})
    assert not plan(spec, "sm_90a").holes.mask.runs
