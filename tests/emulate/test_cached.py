"""Sequences that have fewer keys than their arrays have place for: each kernel against the same sequences one by one, without a cache."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flashgen
from flashgen.errors import CallError, PlanError, SpecError
from flashgen.expr.meaning.reference import reference
from flashgen.plan import plan
from flashgen.spec import Spec
from tests.plan.agreement import arrays, judge

ROOM = 200
KERNELS = {
    "interpreter": ("interpreter", "sm_90a", {"dtype": "float16", "mask": "causal & window(40, 0)"}),
    "wgmma": ("emulate", "sm_90a", {"dtype": "float16", "mask": "causal"}),
    "wgmma full": ("emulate", "sm_90a", {"dtype": "bfloat16", "layout": "bhsd"}),
    "mma_sync": ("emulate", "sm_80", {"dtype": "float16", "mask": "causal", "softmax": "off_by_one"}),
    "planes": ("emulate", "sm_90a", {"dtype": "float32", "mask": "causal"}),
    "passes": ("emulate", "sm_80", {"dtype": "float16", "schedule": "two_pass"}),
    "keys outer": ("emulate", "sm_80", {"dtype": "float16", "schedule": {"normalize": "each_step", "outer": "kv"}}),
    "reads": ("emulate", "sm_90a", {"dtype": "float16", "score": "s + bias[h, kv_len - 1 - kv_idx]", "mask": "kv_idx % 3 != kv_len % 3"}),
}
BIAS = {"bias": {"shape": ["hq", "kv_len"], "dtype": "float32"}}
ANY = st.sampled_from([0, 1, 63, 64, 65, 128, ROOM - 1, ROOM]) | st.sampled_from([-1, -(2**31), ROOM + 1, 2**31 - 1])


def spec_of(said):
    return Spec(head_dim=16, outputs=["o", "lse"], cache="contiguous", tensors=BIAS if "score" in said else {}, **said)


def alone(spec):
    """The same attention of sequences that fill their arrays."""
    return Spec(**{key: value for key, value in spec.to_json().items() if key != "cache"})


@pytest.mark.parametrize("kernel", KERNELS)
@given(lengths=st.lists(ANY, min_size=1, max_size=3), q_len=st.sampled_from([1, 5, 70]))
@settings(max_examples=2)
def test_as_each_sequence_alone(kernel, lengths, q_len):
    backend, arch, said = KERNELS[kernel]
    spec = spec_of(said)
    q, k, v = arrays(spec, len(lengths), 4, 2, q_len, ROOM)
    bias = np.random.default_rng(0).standard_normal((4, ROOM)).astype(np.float32)
    there = np.clip(lengths, 0, ROOM)
    for b, n in enumerate(there):  # whatever lies beyond is nobody's
        k.transpose(spec.order.to_heads_first)[b, :, n:] = np.nan
        v.transpose(spec.order.to_heads_first)[b, :, n:] = np.inf
    given = {"bias": bias} if spec.tensors else {}
    o, lse = flashgen.compile(spec, arch, backend)(q, k, v, kv_lens=np.array(lengths, np.int32), **given)
    axis = spec.order.axis("s")
    for b, n in enumerate(there):
        own = {"bias": bias[:, :n]} if given else {}
        one = (q[[b]], k[[b]].take(range(n), axis), v[[b]].take(range(n), axis))
        judge(alone(spec), {"o": o[[b]], "lse": lse[[b]]}, *one, **own)


def test_the_reference_knows_them():
    spec = spec_of({"dtype": "float32", "mask": "causal"})
    q, k, v = arrays(spec, 2, 2, 2, 3, 9)
    o, lse = reference(spec, q, k, v, kv_lens=np.int32([4, 0]))
    np.testing.assert_array_equal(o[:1], reference(alone(spec), q[:1], k[:1, :4], v[:1, :4])[0])
    assert not o[1].any()
    assert (lse[1] == -np.inf).all()


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        (np.zeros(3, np.int32), r"kv_lens has shape \[3\]: expected \[2\], \[b\]"),
        (np.zeros((2, 1), np.int32), r"kv_lens has shape \[2, 1\]: expected \[2\]"),
        (np.zeros(2, np.int64), r"kv_lens is int64: lengths are int32. Cast it"),
        (np.zeros(4, np.int32)[::2], "kv_lens has strides .*: it has to be contiguous"),
        (None, "kv_lens is a NoneType, not an array"),
    ],
)
def test_what_is_no_length_is_told(lengths, message):
    spec = spec_of({"dtype": "float32"})
    with pytest.raises(CallError, match=message):
        flashgen.compile(spec, backend="interpreter")(*arrays(spec, 2, 2, 2, 3, 9), kv_lens=lengths)


def test_lengths_that_are_missing_or_too_many():
    spec = spec_of({"dtype": "float32"})
    q, k, v = arrays(spec, 2, 2, 2, 3, 9)
    with pytest.raises(CallError, match=r"kv_lens, int32 of shape \[b\], is missing: give it as kv_lens="):
        flashgen.compile(spec, backend="interpreter")(q, k, v)
    with pytest.raises(CallError, match="a spec with `cache: contiguous` takes them"):
        flashgen.compile(alone(spec), backend="interpreter")(q, k, v, kv_lens=np.zeros(2, np.int32))


def test_a_cache_in_a_spec():
    with pytest.raises(SpecError, match="cache: expected contiguous"):
        Spec(head_dim=16, dtype="float16", cache="paged")
    with pytest.raises(SpecError, match="gradients"):
        Spec(head_dim=16, dtype="float16", cache="contiguous", backward=True)
    with pytest.raises(PlanError, match="scores in memory are of sequences that are all as long"):
        plan(Spec(head_dim=16, dtype="float16", cache="contiguous", schedule="standard"), "sm_80")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_the_first_sequence_without_keys_reads_nothing_before_the_array(arch):
    """Rows of keys that become planes are read without conditions."""
    random = np.random.default_rng(0)
    q, k, v = (random.standard_normal((2, n, 1, 24)).astype(np.float32) for n in (5, 2, 2))
    attn = flashgen.compile({"dtype": "float32", "head_dim": 24, "mask": "causal", "cache": "contiguous"}, arch, "emulate")
    assert (attn(q, k, v, kv_lens=np.array([0, 2], np.int32))[0] == 0).all()
