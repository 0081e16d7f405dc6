"""Plans for wgmma: which rows take key tiles together."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashgen.expr.ranges import EMPTY
from flashgen.plan import plan
from flashgen.spec import Spec

IDS = {"ids": {"shape": ["b", "kv_len"], "dtype": "int32"}}


def planned(head_dim, length=16384, **keys):
    return plan(Spec(head_dim=head_dim, dtype="bfloat16", **keys), "sm_90a", 0, length)


@pytest.mark.parametrize(("head_dim", "keys", "narrow"), [
    (64, {"mask": "causal"}, True),
    (64, {"mask": "full"}, True),  # 192 rows seldom fill the last query tile
    (128, {"mask": "causal"}, False),
    (128, {"mask": "causal & window(200, 0)", "block": {"m": 128, "n": 32}}, True),
    (128, {"mask": "causal", "block": {"m": 64, "n": 32}}, False),
    (64, {"mask": "document(ids)", "tensors": IDS, "block": {"m": 192, "n": 80}}, False),  # its ranges are those of query tiles
])  # fmt: skip
def test_who_narrows(head_dim, keys, narrow):
    p = planned(head_dim, **keys)
    assert p.pipeline.narrow is narrow
    assert ("narrow" in dict(p.reasons)) is narrow
    assert p.computed.block_m == (64 if narrow else p.tile.block_m)


@given(st.integers(0, 900), st.integers(0, 900), st.sampled_from(["full", "causal", "window(200, 3)", "prefix(70) | causal", "chunk(100)"]))
def test_what_is_computed_is_loaded(q_len, kv_len, mask):
    p = planned(64, mask=mask, block={"m": 192, "n": 64})
    loaded, computed = (ranges.classes(q_len, kv_len, {"b": 0, "h": 0, "hk": 0}) != EMPTY for ranges in (p.ranges, p.computed))
    assert not (computed & ~np.repeat(loaded, 3, axis=0)[: len(computed)]).any()


def test_a_mask_that_only_ends_the_keys_is_not_tested_before():
    assert [planned(64, mask=mask).ranges.tail for mask in ("full", "causal", "prefix(900)")] == [True, False, True]
