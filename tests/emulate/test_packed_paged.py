"""Queries one behind the other and keys in pages: an engine's batch of prompts, chunks of them and single tokens, in one launch."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flashgen
from flashgen.bench.paged import in_pages, table
from flashgen.emulate import EmulationFault, emulate
from flashgen.errors import CallError, PlanError, SpecError
from flashgen.plan import plan
from flashgen.render import render
from flashgen.spec import Spec
from tests.plan.agreement import judge

ROOM = 128
READS = {"score": "s + own[b, kv_idx] + row[b, q_idx]"}
TENSORS = {"own": {"shape": ["b", "kv_len"], "dtype": "float32"}, "row": {"shape": ["b", "q_len"], "dtype": "float32"}}
KERNELS = {
    "interpreter": ("interpreter", "sm_90a", {"mask": "causal & window(40, 0)", "cache": {"page": 4}}),
    "wgmma": ("emulate", "sm_90a", {"mask": "causal & window(40, 0)", "cache": {"page": 16}, "block": {"m": 64, "n": 48}}),
    "wgmma, reads": ("emulate", "sm_90a", {**READS, "mask": "causal", "cache": {"page": 16}}),
    "mma_sync": ("emulate", "sm_80", {**READS, "mask": "causal", "softmax": "off_by_one", "cache": {"page": 1}}),
    "float32": ("emulate", "sm_80", {**READS, "mask": "causal", "dtype": "float32", "cache": {"page": 4}}),
    "passes": ("emulate", "sm_80", {"schedule": "two_pass", "cache": {"page": 64}}),
}
QUERIES, KEYS = st.sampled_from([0, 1, 5, 63, 64, 65]), st.sampled_from([0, 1, 63, 64, 65, ROOM - 1, ROOM])


def spec_of(said):
    tensors = TENSORS if "score" in said else {}
    return Spec(**{"head_dim": 16, "dtype": "float16", "layout": "thd", "outputs": ["o", "lse"], "tensors": tensors, **said})


def drawn(spec, lengths, seed=0):
    """q, k and v in pages, and what else a call gives; keys that nobody has are NaN, and pages without keys none."""
    rng, (of_q, of_k) = np.random.RandomState(seed), zip(*lengths, strict=True)
    batch, total = len(lengths), sum(of_q)
    block_table, keys = table(batch, ROOM // spec.page, rng), []
    for bad in (np.nan, np.inf):
        keys.append(rng.standard_normal((batch, 2, ROOM, 16)).astype(spec.element.numpy))
        for b, n in enumerate(of_k):
            keys[-1][b, :, n:] = bad
    for b, n in enumerate(of_k):
        block_table[b, -(-n // spec.page) :] = rng.choice([-1, 2**31 - 1])
    values = {"own": rng.standard_normal((batch, ROOM)), "row": rng.standard_normal(total)}
    values = {t.name: values[t.name].astype(np.float32) for t in spec.tensors if t.name in values}
    values |= {"cu_seqlens_q": np.cumsum([0, *of_q], dtype=np.int32), "kv_lens": np.array(of_k, np.int32), "block_table": block_table}
    return rng.standard_normal((total, 4, 16)).astype(spec.element.numpy), *(in_pages(spec, x, block_table) for x in keys), values


@pytest.mark.parametrize("kernel", KERNELS)
@given(lengths=st.lists(st.tuples(QUERIES, KEYS), min_size=1, max_size=4))
@settings(max_examples=2)
def test_as_the_reference(kernel, lengths):
    backend, arch, said = KERNELS[kernel]
    spec = spec_of(said)
    q, k, v, values = drawn(spec, lengths)
    o, lse = flashgen.compile(spec, arch, backend)(q, k, v, check=True, **values)
    assert (o.shape, lse.shape) == (q.shape, (4, len(q)))
    judge(spec, {"o": o, "lse": lse}, q, k, v, **values)


LYING = {  # k and v [pages, page, Hk, D], as views of what an engine keeps
    "both in a page": lambda k, v: np.moveaxis(np.stack([k, v], 1), 1, 0),
    "all keys before all values": lambda k, v: tuple(np.stack([k, v])),
    "heads first": lambda k, v: tuple(x.swapaxes(1, 2).copy().swapaxes(1, 2) for x in (k, v)),
    "columns of both beside each other": lambda k, v: np.split(np.concatenate([k, v], 3), 2, 3),
}


@pytest.mark.parametrize("kernel", ["interpreter", "wgmma", "mma_sync", "float32"])
@pytest.mark.parametrize("lying", LYING)
def test_pages_lie_as_an_engine_keeps_them(kernel, lying):
    backend, arch, said = KERNELS[kernel]
    spec = spec_of(said)
    q, k, v, values = drawn(spec, [(5, 70), (0, 9), (33, 128)])
    attention, views = flashgen.compile(spec, arch, backend), LYING[lying](k, v)
    found, alone = attention(q, *views, **values), attention(q, k, v, **values)
    assert [x.tobytes() for x in found] == [x.tobytes() for x in alone]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@given(wild=st.lists(st.sampled_from([-(2**31), -1, 0, 3, 70, 71, 2**31 - 1]), min_size=9, max_size=9))
@settings(max_examples=2)
def test_wild_numbers_leave_the_arrays_alone(arch, wild):
    spec = spec_of({"mask": "causal", "cache": {"page": 16}})
    q, k, v, values = drawn(spec, [(30, 100), (1, 64), (39, 39)])
    values |= {"cu_seqlens_q": np.array(wild[:4], np.int32), "kv_lens": np.array(wild[4:7], np.int32)}
    values["block_table"][:, ::3] = wild[7]
    chosen = plan(spec, arch)
    emulate(chosen, render(chosen), q, k, v, values, checks=False)  # sequences may share rows: no look for races


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("unit[r] = power_of_two(-TOP);", "unit[r] = power_of_two(1);"),
        ("u32(kv_idx) % PAGE * strides.row", "u32(kv_idx) % PAGE * strides.column"),
        ("page * strides.batch", "work.batch * strides.batch"),
        ("q_idx < sequence.q_len() ? queries", "q_idx <= sequence.q_len() ? queries"),
        ("rows.sum[r] = fmaf(rows.sum[r], rescale[r], sum);", "rows.sum[r] += sum;"),
    ],
    ids=["weights", "rows of a page", "the sequence's own", "a row more", "sums stay behind"],
)
def test_mistakes_of_float32_are_found(old, new):
    spec = spec_of({"mask": "causal", "dtype": "float32", "head_dim": 16, "cache": {"page": 4}})
    chosen = plan(spec, "sm_80")
    source = render(chosen)
    assert old in source.text
    q, k, v, values = drawn(spec, [(65, 128), (1, 70), (5, 9)])
    changed = dataclasses.replace(source, text=source.text.replace(old, new))
    with pytest.raises((EmulationFault, AssertionError)):
        judge(spec, dict(emulate(chosen, changed, q, k, v, values)), q, k, v, **values)


def test_what_cannot_be_is_told():
    spec = spec_of({"cache": {"page": 16}})
    q, k, v, values = drawn(spec, [(3, 100), (1, 64)])
    attention = flashgen.compile(spec, backend="interpreter")
    with pytest.raises(CallError, match=r"k has 3 axes, .*: expected 4, \[pages, 16, Hk, 16\]"):
        attention(q, k[0], v, **values)
    with pytest.raises(CallError, match=r"kv_lens has shape \[3\]: expected \[2\]"):
        attention(q, k, v, **(values | {"kv_lens": np.zeros(3, np.int32)}))
    with pytest.raises(CallError, match="cu_seqlens_q begins with 1"):
        attention(q, k, v, check=True, **(values | {"cu_seqlens_q": np.int32([1, 2, 4])}))
    with pytest.raises(SpecError, match="x has q_len without b before it"):
        spec_of({"cache": {"page": 16}, "tensors": {"x": {"shape": ["hq", "q_len"], "dtype": "float32"}}})
    with pytest.raises(PlanError, match="no kernel serves"):
        plan(spec_of({"cache": {"page": 16}, "dtype": "float32", "schedule": "two_pass"}), "sm_90a")
