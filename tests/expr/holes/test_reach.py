"""Keys that some query may see by their place: none that one sees is left out, and what hides by place is found."""

import numpy as np
import pytest
from hypothesis import given, reject

from flashgen.errors import SpecError
from flashgen.expr.holes import reach
from flashgen.spec import Spec
from tests.expr.masks import EXACT, FEW, LENGTHS, MANY, MASKS, PARAMS, TENSORS, mask_of, split, values, visible

SPEC = Spec(
    head_dim=8,
    dtype="float32",
    params={**dict.fromkeys(PARAMS, 1), "slope": 1.0},
    tensors={t.name: {"shape": list(t.shape), "dtype": t.dtype} for t in TENSORS},
)
# Of these the keys that no query sees are known exactly.
FOUND = split(
    """kv_idx < lens[b]; causal & (kv_idx < lens[b]); bits[b, kv_idx]; causal & bits[b, kv_idx] & (kv_idx % 3 != 1); causal_top_left;
    window(9, 3); prefix(n); (kv_idx < 4) | (kv_idx >= c); ids[b, kv_idx] == lens[b]; ~(kv_idx > lens[b]) & full; flags[h] & (kv_idx < 7);
    (kv_idx >= starts[h, 1]) & (kv_idx < starts[h, 2]); 0.5 * kv_idx < 9.5; kv_idx // 3 < n;
    where(h < 2, kv_idx < n, full); chunk(n); chunk(5); bit(n, c) | window(2, -1); where(bit(n, h), kv_idx < c, window(3, 3));
    (0.5 * n < 1.5) | (kv_idx >= c) & ~bit(lens[b], 1); causal & where(q_len != kv_idx, h <= 0, kv_idx < n)"""
)
NOTHING_HIDDEN = split("full; causal; prefix(n) | causal; document(ids); ids[b, kv_idx] <= ids[b, q_idx]; tanh(slope * kv_idx) < 0.5")


def reached(text, q_len, kv_len, given_values):
    found = reach.reach(mask_of(text), SPEC)
    return np.ones(kv_len, bool) if found is None else found.evaluate(q_len, kv_len, given_values)


@MANY
@given(MASKS, LENGTHS.filter(bool), LENGTHS, values())
def test_no_key_that_a_query_sees_is_left_out(text, q_len, kv_len, given_values):
    try:
        mask_of(text)
    except SpecError:  # what 64 bits may not hold
        reject()
    seen = visible(text, q_len, kv_len, given_values).any(0)
    assert not (seen & ~reached(text, q_len, kv_len, given_values)).any()


@pytest.mark.parametrize("text", FOUND)
@FEW
@given(LENGTHS.filter(bool), LENGTHS, values())
def test_what_hides_by_place_is_found(text, q_len, kv_len, given_values):
    seen = visible(text, q_len, kv_len, given_values).any(0)
    assert (reached(text, q_len, kv_len, given_values) == seen).all()


@pytest.mark.parametrize("text", NOTHING_HIDDEN)
def test_what_hides_no_key_for_all_costs_nothing(text):
    assert reach.reach(mask_of(text), SPEC) is None


@pytest.mark.parametrize("text", [*EXACT, *FOUND])
def test_text(text):
    found = reach.reach(mask_of(text), SPEC)
    if found is not None:
        assert all("q_begin" not in line and "q_last" not in line for line in (*found.text.lines, *map(" ".join, found.text.spans)))
        assert found.by_head == any(word in text for word in ("h <", "flags[h]", "starts[h", ", h)"))
