"""Gradients of sequences one behind the other: each kernel against the same sequences one by one, in arrays of their own."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flashgen
from flashgen.emulate import EmulationFault, emulate_backward
from flashgen.errors import CallError, SpecError
from flashgen.interpret import Given
from flashgen.plan.backward import plan_backward
from flashgen.render import render
from flashgen.spec import Spec
from tests.emulate.test_packed import LENGTHS, WILD, alone, drawn, ends, of_one
from tests.plan.gradients import completed, judge

ASKING = {
    "bias": {"shape": ["hq", "b", "kv_len"], "dtype": "float32", "grad": True},
    "row": {"shape": ["b", "q_len"], "dtype": "float32", "grad": True},
    "ids": {"shape": ["b", "kv_len"], "dtype": "int32"},
}
GRADIENTS = {"score": "s + bias[h, b, kv_idx] * row[b, q_idx]", "mask": "causal"}
KERNELS = {
    "interpreter": ("interpreter", "sm_90a", {"mask": "causal & window(40, 0)"}),
    "gradients interpreted": ("interpreter", "sm_80", GRADIENTS),
    "mma_sync": ("emulate", "sm_80", {"mask": "causal", "softmax": "off_by_one"}),
    "deterministic": ("emulate", "sm_80", {"mask": "document(ids)", "deterministic": True}),
    "gradients of mma_sync": ("emulate", "sm_80", GRADIENTS),
    "turns": ("emulate", "sm_90a", {"mask": "causal", "deterministic": True}),
    "wgmma": ("emulate", "sm_90a", {"mask": "causal & window(70, 0)"}),
    "gradients of wgmma": ("emulate", "sm_90a", GRADIENTS),
    "two blocks": ("emulate", "sm_90a", {"head_dim": {"qk": 192, "v": 128}, "mask": "causal"}),
}


def spec_of(said):
    tensors = {name: how for name, how in ASKING.items() if name in str(said)}
    return Spec(**({"head_dim": 16, "dtype": "float16"} | said), layout="thd", tensors=tensors, backward=True)


def one_by_one(spec, cu_seqlens_q, cu_seqlens_k, dlse=True):
    """Each sequence's place, and its call in arrays of its own; and the call of all of them."""
    q, k, v, values = drawn(spec, cu_seqlens_q, cu_seqlens_k)
    of_q, of_k = ([slice(*pair) for pair in itertools.pairwise(x)] for x in (cu_seqlens_q, cu_seqlens_k))
    places = list(zip(of_q, of_k, strict=True))
    calls = []
    for b, (rows, keys) in enumerate(places):
        own = of_one(values, b, rows, keys)
        calls.append((completed(alone(spec), q[None, rows], k[None, keys], v[None, keys], seed=b, dlse=dlse, **own), own))
    parts = {name: np.concatenate([getattr(call, name)[0] for call, _ in calls]) for name in ("q", "k", "v", "o", "do")}
    numbers = {name: np.concatenate([getattr(call, name)[0] for call, _ in calls], -1) for name in ("lse", "dlse")}
    return places, calls, Given(**parts, **numbers), values


def own_part(found, rows, keys):
    """The gradients of one sequence among those of all."""
    parts = {
        "dq": lambda x: x[None, rows],
        "dk": lambda x: x[None, keys],
        "dv": lambda x: x[None, keys],
        "bias": lambda x: x[:, None, keys],
        "row": lambda x: x[None, rows],
    }
    return {name: parts[name](x) for name, x in found.items()}


@pytest.mark.parametrize("kernel", KERNELS)
@given(lengths=st.lists(st.tuples(LENGTHS, LENGTHS), min_size=1, max_size=5), bad=st.integers(0, 4))
@settings(max_examples=2)
def test_as_each_sequence_alone(kernel, lengths, bad):
    """Nothing that a sequence holds, NaN too, reaches another."""
    backend, arch, said = KERNELS[kernel]
    spec = spec_of(said)
    cu_seqlens_q, cu_seqlens_k = (ends(x) for x in zip(*lengths, strict=True))
    places, calls, whole, values = one_by_one(spec, cu_seqlens_q, cu_seqlens_k)
    if bad < len(places):
        rows, keys = places[bad]
        whole.q[rows] = whole.do[rows] = np.nan
        whole.k[keys] = whole.v[keys] = np.inf
    lengths = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    results = flashgen.compile(spec, arch, backend).backward(**vars(whole), **values, **lengths)
    found = dict(zip(("dq", "dk", "dv", *(one.name for one in spec.with_grad)), results, strict=True))
    for b, (place, (call, own)) in enumerate(zip(places, calls, strict=True)):
        if b != bad:
            judge(alone(spec), own_part(found, *place), call, **own)


def test_who_serves_packed_sequences():
    served = [plan_backward(spec_of(KERNELS[kernel][2]), "sm_90a").skeleton for kernel in ("wgmma", "two blocks")]
    assert served == ["backward_sm90", "backward_sm90_pair"]


@pytest.mark.parametrize("kernel", [*KERNELS, "embedded"])
def test_gradients_of_rows_behind_the_last_sequence_are_zeros(kernel):
    """Buffers that are longer than the sequences in them, as of a fixed shape: whoever goes on with all rows meets no NaN."""
    embedded = {"mask": "causal", "norm": {}, "rotary": {"kind": "halves", "base": 100.0}}
    backend, arch, said = KERNELS.get(kernel, ("emulate", "sm_90a", embedded))
    spec, lengths = spec_of(said), ends([70, 0, 30])
    places, calls, whole, values = one_by_one(spec, lengths, lengths)
    longer = {name: np.full_like(x, np.nan, shape=(300, *x.shape[1:])) for name, x in vars(whole).items() if x.ndim == 3}
    for name, x in longer.items():
        x[:100] = getattr(whole, name)
    longer |= {name: np.pad(getattr(whole, name), ((0, 0), (0, 200)), constant_values=np.nan) for name in ("lse", "dlse")}
    values = {name: np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, 200)]) for name, x in values.items()}
    given = values | {"cu_seqlens_q": lengths, "cu_seqlens_k": lengths}
    results = flashgen.compile(spec, arch, backend).backward(**longer, **given)
    found = dict(zip(("dq", "dk", "dv", *(one.name for one in spec.with_grad)), results, strict=True))
    for name, x in found.items():
        assert not (x[:, 100:] if name == "bias" else x[100:]).any(), name
    for place, (call, own) in zip(places, calls, strict=True):
        judge(alone(spec), own_part(found, *place), call, **own)


@pytest.mark.parametrize(("arch", "head_dim"), [("sm_80", 16), ("sm_90a", 16), ("sm_90a", 136)])
@given(wild=st.lists(WILD, min_size=2, max_size=40), also=st.randoms())
@settings(max_examples=2)
def test_wild_lengths_leave_the_arrays_alone(arch, head_dim, wild, also):
    spec = spec_of({"head_dim": head_dim, "mask": "causal"})
    _, _, whole, values = one_by_one(spec, ends([100]), ends([100]))
    lengths = {"cu_seqlens_q": np.array(wild, np.int32), "cu_seqlens_k": np.array(also.sample(wild, len(wild)), np.int32)}
    program = plan_backward(spec, arch)
    emulate_backward(program, render(program), whole, values | lengths, checks=False)  # sequences may share rows: no look for races


def test_lse_is_told_by_its_axes():
    spec = spec_of({})
    *_, whole, values = one_by_one(spec, ends([9]), ends([9]))
    lengths = {"cu_seqlens_q": ends([9]), "cu_seqlens_k": ends([9])}
    attention = flashgen.compile(spec, backend="interpreter")
    with pytest.raises(CallError, match=r"lse is None: expected what the forward gave, \[Hq, total_q\] float32"):
        attention.backward(**vars(replace(whole, lse=None)), **values, **lengths)
    with pytest.raises(CallError, match=r"cu_seqlens_k, int32 of shape .* is missing"):
        attention.backward(**vars(whole), **values, cu_seqlens_q=ends([9]))


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"cache": {"page": 16}}, "keys in pages have no gradients: sequences may share a page"),
        ({"cache": {"page": 16}, "layout": "thd"}, "keys in pages have no gradients"),
        ({"cache": "contiguous"}, "a cache has no gradients: of its keys only some are of the call"),
    ],
)
def test_what_has_no_gradients(said, message):
    with pytest.raises(SpecError, match=message):
        Spec(head_dim=16, dtype="float16", backward=True, **said)


FAULTS = {
    "rows of the next sequence stay": ("wgmma", "clear(shared + DO + stage * DO_BYTES, V_STORED, tile);", ""),
    "one row of the next sequence stays": ("wgmma", "<= work.q_len; }", "<= work.q_len + 1; }"),
    "keys of the next sequence are written": ("wgmma", "if (row + nth >= end) break;", ""),
    "rows of another sequence's place": ("mma_sync", "query_places(p).of(work.batch)", "work.batch"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_show(fault):
    kernel, text, instead = FAULTS[fault]
    _, arch, said = KERNELS[kernel]
    spec = spec_of(said)
    cu_seqlens_q, cu_seqlens_k = ends([127, 0, 300, 5]), ends([65, 5, 200, 9])
    places, calls, whole, values = one_by_one(spec, cu_seqlens_q, cu_seqlens_k)
    whole.do[places[2][0]] = np.nan
    program = plan_backward(spec, arch)
    source = render(program)
    assert text in source.text
    changed = replace(source, text=source.text.replace(text, instead))
    values |= {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}

    def judged():
        found = emulate_backward(program, changed, whole, values)
        for b in (0, 3):
            judge(alone(spec), own_part(found, *places[b]), calls[b][0], **calls[b][1])

    with pytest.raises((EmulationFault, AssertionError)):
        judged()
