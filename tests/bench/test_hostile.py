"""Hostile data: each kind is there, views hold what they hold, and what is hidden is what the mask hides by place."""

import numpy as np
import pytest

from flashgen.bench import hostile
from flashgen.plan.geometry import Sizes
from flashgen.spec import Spec

SIZES = Sizes(batch=2, q_len=3, kv_len=12, heads=4, kv_heads=2)
LENS = {"lens": {"shape": ["b"], "dtype": "int32"}}


@pytest.mark.parametrize(
    ("mask", "keys"),
    [
        ("causal", range(12, 12)),
        ("causal_top_left", range(3, 12)),
        ("window(2, 0)", range(7)),
        ("causal & (kv_idx < lens[b])", range(5, 12)),
        ("prefix(4)", range(4, 12)),
        ("kv_idx % 3 != 1", range(1, 12, 3)),
        ("(kv_idx < 2) | (kv_idx > 8)", range(2, 9)),
        ("chunk(4)", range(8)),
        ("(q_idx - kv_idx) % 4 == 0", range(12, 12)),
        ("(h < 2) & (kv_idx > q_idx)", range(1)),
    ],
)
def test_what_is_hidden(mask, keys):
    spec = Spec(head_dim=8, dtype="float32", mask=mask, tensors=LENS if "lens" in mask else {})
    found = hostile.hidden(spec, SIZES, {"lens": np.int32([5, 5])})
    assert found.shape == (2, 2, 12)
    assert (found == np.isin(np.arange(12), keys)).all()
    _, k, v, _ = hostile.draw(spec, SIZES, ["hidden"], np.random.RandomState(0))
    if "lens" not in mask:
        for x in (k, v):
            np.testing.assert_array_equal(np.isfinite(x).all((0, 2, 3)), ~np.isin(np.arange(12), keys))


@pytest.mark.parametrize("aligned", [False, True])
def test_views_hold_the_same_numbers(aligned):
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 8)).astype(np.float16)
    seen = set()
    for seed in range(60):
        found = hostile.view(x, np.random.RandomState(seed), aligned)
        assert found.shape == x.shape
        if 0 not in found.strides:
            np.testing.assert_array_equal(found, x)
        assert not aligned or (found.strides[-1] == 2 and all(n > 0 and n % 16 == 0 for n in found.strides[:-1]))
        seen.add(found.strides)
    assert len(seen) > 8
    assert aligned or any(0 in strides or min(strides) < 0 for strides in seen)


def test_kinds_are_those_that_a_spec_can_meet():
    biased = Spec(
        head_dim=8, dtype="float32", score="s + bias[b, kv_idx - 1]", tensors={"bias": {"shape": ["b", "kv_len"], "dtype": "float32"}}
    )
    assert hostile.kinds_of(Spec(head_dim=8, dtype="float32"), SIZES) == ["views"]
    assert hostile.kinds_of(biased, SIZES) == ["biases", "axes", "views"]
    assert hostile.kinds_of(Spec(head_dim=8, dtype="float32", mask="prefix(n)", params={"n": 3}), SIZES) == ["integers", "hidden", "views"]
    large = [np.abs(hostile.draw(biased, SIZES, ["biases"], np.random.RandomState(seed))[3]["bias"]) > 1e8 for seed in range(9)]
    assert any(x.any() for x in large)
