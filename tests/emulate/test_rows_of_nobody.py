"""Rows that no sequence has, before the first and behind the last, as in arrays of a fixed shape: they count as rows without keys."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flashgen
from flashgen.bench.paged import in_pages, table
from flashgen.emulate import EmulationFault, emulate, emulate_backward
from flashgen.interpret import Given
from flashgen.plan import plan
from flashgen.plan.backward import plan_backward
from flashgen.render import render
from flashgen.spec import Spec
from flashgen.spec.outputs import OUTPUTS
from tests.emulate.test_packed import LENGTHS, ends
from tests.plan.agreement import arrays, judge
from tests.plan.gradients import completed
from tests.plan.gradients import judge as judge_gradients

ALL = ["o", "lse", "max", "max_logit"]
SINK = {"softmax": {"sink": "slopes[h]"}, "tensors": {"slopes": {"shape": ["hq"], "dtype": "float32"}}}
KERNELS = {  # an arch, and what the spec says: a list of work where keys may be shared, else places
    "interpreter": ("sm_90a", {"mask": "causal", "outputs": [*ALL, "entropy"]}),
    "wgmma": ("sm_90a", {"mask": "causal", "outputs": ALL, "output": "o + 0.5 * v_idx"}),
    "wgmma, one share": ("sm_90a", {"mask": "causal", "split": 1, **SINK}),
    "wgmma, entropy": ("sm_90a", {"mask": "window(70, 0)", "outputs": [*ALL, "entropy"], "out_dtype": "float32"}),
    "wgmma, pages": ("sm_90a", {"mask": "causal", "cache": {"page": 16}, "outputs": ALL}),
    "mma_sync": ("sm_80", {"outputs": ["o", "lse", "o_raw"], "output": "3.0 * o + 1.0", **SINK}),
    "mma_sync, three shares": ("sm_80", {"mask": "causal", "split": 3, "outputs": ["o", "max_logit"]}),
    "mma_sync, one share": ("sm_80", {"mask": "causal", "split": 1, "outputs": [*ALL, "entropy", "o_raw"], "output": "o + 1.0"}),
    "mma_sync, pages": ("sm_80", {"mask": "causal", "cache": {"page": 4}, "softmax": "off_by_one"}),
    "no softmax": ("sm_90a", {"softmax": "none", "score": "sigmoid(s)", "outputs": ["o"]}),
    "passes": ("sm_80", {"schedule": "two_pass", "outputs": ALL}),
    "float32": ("sm_80", {"dtype": "float32", "mask": "causal", "outputs": ALL}),
    "float32, pages": ("sm_90a", {"dtype": "float32", "mask": "causal", "cache": {"page": 4}}),
}
APART = st.sampled_from([0, 1, 63, 64, 130])


def call(kernel, lengths, before, behind, seed=0):
    """A call with so many rows of nobody before its sequences and behind them, of q and of k; they are NaN, and k there infinite."""
    arch, said = KERNELS[kernel]
    spec = Spec(**{"head_dim": 16, "dtype": "float16", "layout": "thd", "outputs": ["o", "lse"], **said})
    rng, (of_q, of_k) = np.random.RandomState(seed), zip(*lengths, strict=True)
    starts = [before + np.cumsum([0, *x], dtype=np.int32) for x in (of_q, of_k)]
    q, k, v = (rng.standard_normal((x[-1] + behind, heads, 16)) for x, heads in ((starts[0], 4), (starts[1], 2), (starts[1], 2)))
    for x, of, bad in ((q, 0, np.nan), (k, 1, np.inf), (v, 1, np.nan)):
        x[: starts[of][0]] = x[starts[of][-1] :] = bad
    values = {"cu_seqlens_q": starts[0], "slopes": np.float32([0.5, -0.25, 1, 2])}
    if spec.page:
        k, v = rng.standard_normal((2, len(lengths), 2, 64, 16))
        values |= {"kv_lens": np.minimum(of_k, 64).astype(np.int32), "block_table": table(len(lengths), 64 // spec.page, rng)}
        k, v = (in_pages(spec, x.astype(spec.element.numpy), values["block_table"]) for x in (k, v))
    else:
        values["cu_seqlens_k"] = starts[1]
    names = {"cu_seqlens_q", *spec.sizing, *(name for name, _ in spec.geometry.lengths), *(t.name for t in spec.tensors)}
    q, k, v = (x.astype(spec.element.numpy) for x in (q, k, v))
    return spec, arch, q, k, v, {name: x for name, x in values.items() if name in names}


def nobody(x, name, starts):
    """The part of an output that no sequence has."""
    x = x if OUTPUTS[name].like_o else x.T
    return np.concatenate([x[: starts[0]], x[starts[-1] :]])


def judged(spec, found, q, k, v, values):
    """The outputs of all rows, and to the bit those of nobody."""
    judge(spec, found, q, k, v, **values)
    for name, x in found.items():
        if name != "max_logit":
            assert (nobody(x, name, values["cu_seqlens_q"]) == OUTPUTS[name].empty).all(), name


def results(spec, found):
    """The results of a call by name."""
    return dict(zip([name for name in OUTPUTS if name in spec.outputs], found if isinstance(found, tuple) else (found,), strict=True))


@pytest.mark.parametrize("kernel", KERNELS)
@given(lengths=st.lists(st.tuples(LENGTHS, LENGTHS), min_size=1, max_size=4), before=APART, behind=APART, seed=st.integers(0, 9))
@settings(max_examples=2)
def test_outputs_are_those_of_rows_without_keys(kernel, lengths, before, behind, seed):
    spec, arch, q, k, v, values = call(kernel, lengths, before, behind, seed)
    if kernel == "interpreter":
        found = results(spec, flashgen.compile(spec, arch, kernel)(q, k, v, **values))
    else:
        chosen = plan(spec, arch)
        found = dict(emulate(chosen, render(chosen), q, k, v, values, seed=seed))
    judged(spec, found, q, k, v, values)


@pytest.mark.parametrize("kernel", KERNELS)
def test_without_any_sequence_all_rows_are_nobodys(kernel):
    spec, arch, q, k, v, values = call(kernel, [(5, 9)], 3, 70)
    none = {"cu_seqlens_q": np.int32([2]), "cu_seqlens_k": np.int32([1]), "kv_lens": np.zeros(0, np.int32)}
    none["block_table"] = np.zeros((0, 4), np.int32)
    values |= {name: x for name, x in none.items() if name in values}
    found = [results(spec, flashgen.compile(spec, arch, "interpreter")(q, k, v, **values))]
    if kernel != "interpreter":
        found.append(emulate(plan(spec, arch), render(plan(spec, arch)), q, k, v, values))
    for each in found:
        for name, x in each.items():
            assert (x == OUTPUTS[name].empty).all(), name


FAULTS = {
    "rows before": ("mma_sync", "nth < somebody.begin ? nth : nth + somebody.length()", "nth"),
    "rows behind": ("wgmma", "rows = p.total_q - somebody.length()", "rows = somebody.begin"),
    "of some heads": ("wgmma, entropy", "t < (long long)rows * p.heads", "t < rows"),
    "columns": ("mma_sync, pages", "column < 16; column += 32", "column < 8; column += 32"),
    "sums of rows": ("mma_sync, one share", "if (lane == 0) p.entropy[(long long)head * p.total_q + row] = 0.0f;", ""),
    "warps of others": ("wgmma", "t += gridDim.x * warps", "t += gridDim.x * warps + 1"),
    "what output makes": ("mma_sync", "p.finished_o[row * p.finished_o_strides.row", "p.o[row * p.o_strides.row"),
    "rows of the first": ("float32", "clear_rows_of_nobody(p, all_queries(p)", "clear_rows_of_nobody(p, queries_of(p, 1)"),
    "by nobody": ("wgmma, one share", "    if (threadIdx.x / 32 == 1) clear_rows_of_nobody", "    if (p.heads < 0) clear_rows_of_nobody"),
    "places before": ("mma_sync, one share", "max(0, multiples(sequence) - multiples(0)) + sequence", "multiples(sequence) + sequence"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_mistakes_are_found(fault):
    kernel, old, new = FAULTS[fault]
    spec, arch, q, k, v, values = call(kernel, [(70, 64), (5, 9), (0, 3)], 130, 64)
    chosen = plan(spec, arch)
    source = render(chosen)
    assert old in source.text
    changed = replace(source, text=source.text.replace(old, new))
    with pytest.raises((EmulationFault, AssertionError)):
        judged(spec, dict(emulate(chosen, changed, q, k, v, values)), q, k, v, values)


SINKING = {"mask": "causal", "softmax": {"sink": "rest"}, "params": {"rest": {"default": 0.5, "grad": True}}}
GATED = {"mask": "causal", "output": "gate * o", "params": {"gate": {"default": 0.5, "grad": True}}}
EMBEDDED = {"mask": "causal", "norm": {}, "rotary": {"kind": "halves", "base": 100.0}}
BACKWARDS = {
    "interpreter": ("interpreter", "sm_90a", SINKING),
    "mma_sync": ("emulate", "sm_80", SINKING),
    "wgmma": ("emulate", "sm_90a", SINKING),
    "wgmma, gated": ("emulate", "sm_90a", GATED),
    "wgmma, embedded": ("emulate", "sm_90a", EMBEDDED),
    "two blocks": ("emulate", "sm_90a", {"head_dim": {"qk": 192, "v": 128}, "mask": "causal"}),
}


def padded(x, before, behind, axis):
    """Rows of NaN before an array and behind it."""
    around = [(0, 0)] * x.ndim
    around[axis] = (before, behind)
    return np.pad(x, around, constant_values=np.nan)


LENGTHS_OF_BACKWARD = {"cu_seqlens_q": ends([70, 0, 30]), "cu_seqlens_k": ends([9, 65, 64])}


def differentiated(kernel, before, behind):
    """A backward with so many rows of nobody before its sequences and behind them, which are NaN, and the same without them."""
    spec = Spec(**({"head_dim": 16, "dtype": "float16"} | BACKWARDS[kernel][2]), layout="thd", backward=True)
    own = completed(spec, *arrays(spec, 1, 4, 2, 100, 138), dlse=True, **LENGTHS_OF_BACKWARD)
    return spec, own, Given(**{name: padded(x, before, behind, 0 if x.ndim == 3 else 1) for name, x in vars(own).items()})


def judged_backward(spec, own, found, before):
    """Gradients of nobody's rows are zeros; those of others, and of what all rows read, are as without them."""
    found = dict(found)
    for name, rows in (("dq", 100), ("dk", 138), ("dv", 138)):
        x = found[name]
        assert not x[:before].any(), name
        assert not x[before + rows :].any(), name
        found[name] = x[before : before + rows]
    judge_gradients(spec, found, own, **LENGTHS_OF_BACKWARD)


@pytest.mark.parametrize("kernel", BACKWARDS)
@given(before=APART, behind=APART)
@settings(max_examples=2)
def test_gradients_know_nothing_of_nobodys_rows(kernel, before, behind):
    backend, arch, _ = BACKWARDS[kernel]
    spec, own, whole = differentiated(kernel, before, behind)
    given = {spec.kept if name == "o" else name: x for name, x in vars(whole).items()}
    lengths = {name: before + x for name, x in LENGTHS_OF_BACKWARD.items()}
    found = flashgen.compile(spec, arch, backend).backward(**given, **lengths)
    judged_backward(spec, own, zip(("dq", "dk", "dv", *(one.name for one in spec.with_grad)), found, strict=True), before)


@pytest.mark.parametrize(
    ("kernel", "old", "new"),
    [
        ("mma_sync", "max(0, multiples(sequence) - multiples(0)) + sequence", "multiples(sequence) + sequence"),
        ("mma_sync", "nth < somebody.begin ? nth : nth + somebody.length()", "nth"),
    ],
)
def test_mistakes_of_backwards_are_found(kernel, old, new):
    _, arch, _ = BACKWARDS[kernel]
    spec, own, whole = differentiated(kernel, 200, 200)
    program = plan_backward(spec, arch)
    source = render(program)
    assert old in source.text
    changed, lengths = replace(source, text=source.text.replace(old, new)), {name: 200 + x for name, x in LENGTHS_OF_BACKWARD.items()}
    with pytest.raises((EmulationFault, AssertionError)):
        judged_backward(spec, own, emulate_backward(program, changed, whole, lengths), 200)
