"""Plans for wgmma: which rows take key tiles together."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashgen.bench.cases import VARIANTS
from flashgen.expr.tiles.ranges import EMPTY
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
    (64, {"mask": "document(ids)", "tensors": IDS, "block": {"m": 192, "n": 80}}, True),
    (128, {"mask": "document(ids)", "tensors": IDS}, True),
])  # fmt: skip
def test_who_narrows(head_dim, keys, narrow):
    p = planned(head_dim, **keys)
    assert p.attention.dealing.narrow is narrow
    assert ("narrow" in dict(p.decision.reasons)) is narrow
    assert p.attention.computed.block_m == (64 if narrow else p.attention.tile.block_m)


@given(st.integers(0, 900), st.integers(0, 900), st.sampled_from(["full", "causal", "window(200, 3)", "prefix(70) | causal", "chunk(100)"]))
def test_what_is_computed_is_loaded(q_len, kv_len, mask):
    p = planned(64, mask=mask, block={"m": 192, "n": 64})
    loaded, computed = (
        ranges.classes(q_len, kv_len, {"b": 0, "h": 0, "hk": 0}) != EMPTY for ranges in (p.attention.ranges, p.attention.computed)
    )
    assert not (computed & ~np.repeat(loaded, 3, axis=0)[: len(computed)]).any()


def test_a_mask_that_only_ends_the_keys_is_not_tested_before():
    assert [planned(64, mask=mask).attention.ranges.tail for mask in ("full", "causal", "prefix(900)")] == [True, False, True]


@pytest.mark.parametrize(("variant", "head_dim", "tile", "multiplied"), [
    ("softcap", 64, "192x128", 8),
    ("softcap", 128, "128x128", 0),
    ("alibi", 64, "192x128", 0),
    ("alibi", 128, "128x128", 0),
    ("document", 64, "192x64", 0),
    ("document", 128, "128x128", 0),
])  # fmt: skip
def test_what_a_score_costs_decides(variant, head_dim, tile, multiplied):
    p = planned(head_dim, length=8192, **VARIANTS[variant])
    assert (p.attention.tile.text, p.attention.pipeline.multiplied) == (tile, multiplied)


@pytest.mark.parametrize("head_dim", [64, 128, 192, 256, 320, 512])
def test_scores_that_read_tables_have_a_plan(head_dim):
    assert planned(head_dim, **VARIANTS["t5"]).attention.tile.block_n >= 16


def test_reasons_tell_the_form_and_the_instructions():
    reasons = dict(planned(64, **VARIANTS["softcap"]).decision.reasons)
    assert "tanh.approx, one special function, off by 2^-16 of tanh" in reasons["functions"]
    assert "of each of its 64 elements, the score takes 1 and 1" in reasons["instructions"]
    reasons = dict(planned(128, **VARIANTS["alibi"]).decision.reasons)
    assert "where the sums of q.k begin" in reasons["start"]
    assert "the maximum and the reference" in reasons["bias"]
    assert "two special functions" in dict(planned(64, **VARIANTS["sigmoid"]).decision.reasons)["functions"]


@pytest.mark.parametrize("out_dtype", ["bfloat16", "float32"])
def test_o_of_float32_is_not_staged(out_dtype):
    p = planned(128, out_dtype=out_dtype)
    staged = out_dtype == "bfloat16"
    assert ("output_place" in dict(p.decision.reasons)) is staged
    assert ("O" in {region.symbol for region in p.attention.smem.regions}) is staged


@pytest.mark.parametrize(("head_dim", "place", "ahead"), [(64, "own", 2), (128, "own", 1), (256, "keys", 1)])
def test_places_of_o_and_q(head_dim, place, ahead):
    p = planned(head_dim, mask="causal")
    assert (p.attention.pipeline.output_place, p.attention.pipeline.query_stages) == (place, ahead)
    assert [region.count for region in p.attention.smem.regions if region.symbol in ("Q", "Q_FULL", "Q_EMPTY")] == [ahead] * 3
    assert ("place of a key tile" in dict(p.decision.reasons).get("output_place", "")) is (place == "keys")
