"""The rule of what a mask hides: scores, or exponents where many key tiles test it and maxima may grow by a threshold."""

import pytest

from flashgen.plan import plan
from flashgen.spec import Spec

KEPT = {"kept": {"shape": ["b", "hq", "kv_len"], "dtype": "bool"}}
FRAMES = "abs(kv_idx // 32 % 32 - q_idx // 32 % 32) <= 4"
HEAVY = {"mask": "causal & (kept[b, h, kv_idx] | window(255, 0))", "tensors": KEPT}


def chosen(said, length, arch="sm_90a"):
    return plan(Spec(**{"head_dim": 128, "dtype": "bfloat16", **said}), arch, length=length).holes.mask


@pytest.mark.parametrize(
    ("said", "length"),
    [
        ({"mask": FRAMES}, 1024),  # all tiles test it
        ({"mask": FRAMES}, 8192),  # bits
        (HEAVY, 8192),  # listed
    ],
)
def test_exponents_where_many_tiles_test_it(said, length):
    found = chosen(said, length)
    assert found.hides == "exponents"
    assert bool(found.columns) == ("tensors" in said)


@pytest.mark.parametrize(
    ("said", "length", "arch"),
    [
        ({"mask": "causal"}, 8192, "sm_90a"),
        ({"mask": "causal & window(1023, 0)"}, 8192, "sm_90a"),
        (HEAVY, 1024, "sm_90a"),  # whole tiles lie between those that test it
        ({"mask": FRAMES, "head_dim": 32}, 8192, "sm_90a"),  # o is rescaled at every key tile
        ({"mask": FRAMES, "dtype": "float32"}, 8192, "sm_90a"),
        ({"mask": FRAMES}, 8192, "sm_80"),
    ],
)
def test_scores_elsewhere(said, length, arch):
    assert chosen(said, length, arch).hides == "scores"
