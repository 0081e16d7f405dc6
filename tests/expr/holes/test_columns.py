"""Masks that are asked by bits of a thread's columns, and those that are not."""

import pytest

from flashgen.expr import holes, lower
from flashgen.expr.holes.columns import in_columns
from flashgen.spec import Spec

TENSORS = {
    "kept": {"shape": ["b", "hq", "kv_len"], "dtype": "bool"},
    "seen": {"shape": ["b", "q_len", "kv_len"], "dtype": "bool"},
    "ids": {"shape": ["b", "kv_len"], "dtype": "int32"},
    "far": {"shape": ["hq"], "dtype": "bool"},
}


def asked(mask: str, block_n: int = 128) -> str:
    spec = Spec(head_dim=64, dtype="bfloat16", mask=mask, tensors={name: TENSORS[name] for name in TENSORS if f"{name}[" in mask})
    found = holes(lower(spec), spec)
    return in_columns(found.mask.body, found.reads, block_n)


@pytest.mark.parametrize(
    ("mask", "bounds"),
    [
        ("window(9, 0) | (kv_idx < 4)", 4),
        ("causal & (kept[b, h, kv_idx] | window(255, 0))", 3),
        ("causal & (far[h] | window(255, 0))", 3),
        ("causal & ~window(20, 0)", 3),
        ("(abs(kv_idx // 128 - q_idx // 128) <= 8) & (abs(kv_idx % 128 - q_idx % 128) <= 8)", 4),
    ],
)
def test_bounds_and_flags_are_bits(mask, bounds):
    assert asked(mask).count("columns_below") == bounds


@pytest.mark.parametrize(
    ("mask", "block_n"),
    [
        ("causal", 128),  # one comparison, or two, are as few instructions
        ("causal & window(255, 0)", 128),
        ("causal & (seen[b, q_idx, kv_idx] | window(255, 0))", 128),  # flags of a row, not of all
        ("causal & ((ids[b, kv_idx] == 3) | window(255, 0))", 128),
        ("(abs(kv_idx // 64 - q_idx // 64) <= 8) & (abs(kv_idx % 64 - q_idx % 64) <= 8)", 128),  # a tile holds two of what is divided
        ("window(9, 0) | (kv_idx < 4)", 192),  # more columns than a word has bits
    ],
)
def test_others_are_asked_pair_by_pair(mask, block_n):
    assert not asked(mask, block_n)
