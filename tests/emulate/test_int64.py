"""Tensors of int64: their numbers are compared as they are, in 64 bits, and their bits are read."""

from dataclasses import replace

import numpy as np
import pytest

import flashgen
from flashgen.bench import hostile
from flashgen.emulate import emulate
from flashgen.errors import SpecError
from flashgen.expr import lower, show
from flashgen.interpret import interpret
from flashgen.plan import plan
from flashgen.plan.geometry import Sizes
from flashgen.render import render
from flashgen.spec import Spec, loads
from tests.plan.agreement import judge_of

IDS = {"ids": {"shape": ["b", "kv_len"], "dtype": "int64"}}
LENS = {**IDS, "lens": {"shape": ["b"], "dtype": "int64"}}
MASKS = {
    "documents": {"mask": "causal & document(ids)", "tensors": IDS},
    "sizes": {"mask": "(ids[b, q_idx] >= ids[b, kv_idx]) & (kv_idx < lens[b])", "tensors": LENS},
    "lengths": {"mask": "(kv_idx < lens[b]) & (ids[b, kv_idx] != -5)", "tensors": LENS},
    "bits": {"mask": "bit(words[b, q_idx], kv_idx)", "tensors": {"words": {"shape": ["b", "q_len"], "dtype": "int64"}}},
    "starts": {
        "mask": "(kv_idx >= int(starts[b, int(ids[b, q_idx])])) & (q_idx - int(ids[b, kv_idx]) < 9)",
        "tensors": {**IDS, "starts": {"shape": ["b", 9], "dtype": "int64"}},
    },
    "scores": {"score": "s + where(ids[b, kv_idx] > ids[b, q_idx], 1.0, 0.0)", "tensors": IDS},
}


CASES = [
    *((name, "host") for name in MASKS),
    ("documents", "sm_90a"),
    ("sizes", "sm_90a"),
    ("bits", "sm_80"),
    ("starts", "sm_90a"),
    ("scores", "sm_90a"),
]


@pytest.mark.parametrize(("name", "arch"), CASES)
def test_values(name, arch):
    spec = Spec(head_dim=16, dtype="float16", outputs=["o", "lse"], **MASKS[name])
    chosen = plan(spec, arch)
    source = None if arch == "host" else render(chosen)
    for kinds in ((), ("integers", "hidden", "axes")):
        q, k, v, values = hostile.draw(spec, Sizes(2, 40, 70, 2, 1), kinds, np.random.RandomState(1))
        found = interpret(chosen, q, k, v, values) if source is None else emulate(chosen, source, q, k, v, values)
        judge_of(spec, q, k, v, **values)(found)


@pytest.mark.parametrize(("name", "sides"), [("documents", ["=="]), ("sizes", ["<=", "<"])])
def test_key_tiles_are_found_by_them(name, sides):
    chosen = plan(Spec(head_dim=64, dtype="bfloat16", **MASKS[name]), "sm_90a")
    assert [pairing.op for pairing in chosen.main.ranges.pairings] == sides
    assert not chosen.main.ranges.reasons


def test_ids_that_differ_in_their_upper_halves_alone_are_told_apart():
    spec = Spec(head_dim=16, dtype="float16", outputs=["o", "lse"], **MASKS["documents"])
    chosen = plan(spec, "sm_90a")
    source = render(chosen)
    q, k, v, _ = hostile.draw(spec, Sizes(1, 40, 70, 2, 1), (), np.random.RandomState(1))
    values = {"ids": np.repeat(np.int64([[1, 1 + 2**32]]), 35, axis=1)}
    judged = judge_of(spec, q, k, v, **values)
    judged(emulate(chosen, source, q, k, v, values))
    right, wrong = "== row.ids_value", "== int(row.ids_value)"
    assert right in source.text
    found = emulate(chosen, replace(source, text=source.text.replace(right, wrong)), q, k, v, values)
    with pytest.raises(AssertionError):
        judged(found)


def test_integers_beyond_32_bits_are_the_nearest_and_not_their_lower_halves():
    spec = Spec(head_dim=16, dtype="float16", outputs=["o", "lse"], **MASKS["starts"])
    chosen = plan(spec, "sm_90a")
    source = render(chosen)
    q, k, v, _ = hostile.draw(spec, Sizes(1, 40, 40, 2, 1), (), np.random.RandomState(1))
    values = {"ids": np.repeat(np.int64([[2, 8]]), 20, axis=1), "starts": np.int64([[0, 0, 2**32 + 3, 0, 0, 0, 0, 0, 0]])}
    judged = judge_of(spec, q, k, v, **values)
    judged(emulate(chosen, source, q, k, v, values))
    right, wrong = "int(min(max(x, -2147483648LL), 2147483647LL))", "int(x)"
    found = emulate(chosen, replace(source, text=source.text.replace(right, wrong)), q, k, v, values)
    with pytest.raises(AssertionError):
        judged(found)


def test_attention_takes_them_as_they_are():
    q = np.random.default_rng(0).standard_normal((1, 9, 2, 16)).astype(np.float32)
    ids = np.repeat(np.arange(3), 3)[None]
    found, want = (flashgen.attention(q, q, q, "document(ids)", ids=ids.astype(dtype)) for dtype in (np.int64, np.int32))
    np.testing.assert_array_equal(found, want)
    spec = Spec(head_dim=16, dtype="float16", **MASKS["bits"])
    assert show(lower(spec).mask) == "bit(words[b, q_idx], kv_idx)"


@pytest.mark.parametrize("number", [0, 5, -1, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**63 - 1, -(2**63)])
def test_int_is_the_nearest_integer(number):
    q = np.ones((1, 1, 1, 16), np.float32)
    nearest = min(max(number, -(2**31)), 2**31 - 1)
    found = flashgen.attention(q, q, q, "int(x[b]) == n", x=np.array([number]), n=nearest)
    assert found.any()
    assert show(lower(Spec(head_dim=16, dtype="float16", **MASKS["starts"])).mask) == MASKS["starts"]["mask"]


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ("ids[b, kv_idx] + 1 == 2", r"<spec>:3:7: this is a number of int64, of which nothing is computed(.|\n)*write int\(x\), or cast"),
        ("ids[b, kv_idx] < 0.5", r"<spec>:3:7: a number of int64 is compared with one of float32"),
        ("kv_idx < where(kv_idx > 2, ids[b, 0], 0)", r"<spec>:3:34: this is a number of int64"),
        ("ids[b, ids[b, 0]] == 2", r"<spec>:3:14: an index of ids is an integer, this is a number of int64"),
        ("ids[b, kv_idx]", r"<spec>:3:7: expected a condition, this is a number of int64"),
        ("bit(2, ids[b, 0])", r"<spec>:3:14: an argument of bit is an integer, this is a number of int64"),
    ],
)
def test_mistakes(mask, message):
    with pytest.raises(SpecError, match=message):
        lower(loads(f"dtype: float16\nhead_dim: 64\nmask: {mask}\ntensors: {{ids: {{shape: [b, kv_len], dtype: int64}}}}\n"))
