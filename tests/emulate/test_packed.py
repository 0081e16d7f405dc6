"""Sequences one behind the other: each kernel against the same sequences one by one, in arrays of their own."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flashgen
from flashgen.emulate import emulate
from flashgen.errors import CallError, PlanError, SpecError
from flashgen.plan import plan
from flashgen.render import render
from flashgen.spec import Spec
from tests.plan.agreement import arrays, judge

TENSORS = {
    "bias": {"shape": ["hq", "b", "kv_len"], "dtype": "float32"},
    "row": {"shape": ["b", "q_len"], "dtype": "float32"},
    "ids": {"shape": ["b", "kv_len"], "dtype": "int32"},
    "lens": {"shape": ["b"], "dtype": "int32"},
}
KERNELS = {
    "interpreter": ("interpreter", "sm_90a", {"mask": "causal & window(40, 0)"}),
    "wgmma": ("emulate", "sm_90a", {"mask": "causal & window(40, 0)"}),
    "wgmma full": ("emulate", "sm_90a", {"block": {"m": 64, "n": 48}, "softmax": "off_by_one"}),
    "mma_sync": ("emulate", "sm_80", {"mask": "causal"}),
    "passes": ("emulate", "sm_80", {"schedule": "two_pass"}),
    "float32": ("emulate", "sm_90a", {"dtype": "float32", "mask": "causal & window(40, 0)", "softmax": "off_by_one"}),
    "reads on wgmma": ("emulate", "sm_90a", {"score": "s + bias[h, b, kv_idx] + row[b, q_idx]", "mask": "kv_idx < lens[b]"}),
    "reads on mma_sync": ("emulate", "sm_80", {"score": "s + row[b, 0] * bias[h, b, kv_len - 1 - kv_idx]", "mask": "document(ids)"}),
}
LENGTHS = st.sampled_from([0, 1, 5, 63, 64, 65, 130])


def spec_of(said):
    tensors = {name: how for name, how in TENSORS.items() if name in str(said)}
    return Spec(**{"head_dim": 16, "dtype": "float16", "layout": "thd", "outputs": ["o", "lse"], "tensors": tensors, **said})


def alone(spec):
    """The same attention of sequences in arrays of their own."""
    return Spec(**{key: value for key, value in spec.to_json().items() if key != "layout"})


def ends(lengths):
    return np.cumsum([0, *lengths], dtype=np.int32)


def drawn(spec, cu_seqlens_q, cu_seqlens_k):
    """q, k, v and what the spec reads, by name."""
    rng, total_q, total_k = np.random.default_rng(0), cu_seqlens_q[-1], cu_seqlens_k[-1]
    q, k, v = arrays(spec, 1, 4, 2, total_q, total_k)
    known = {
        "bias": rng.standard_normal((4, total_k)).astype(np.float32),
        "row": rng.standard_normal(total_q).astype(np.float32),
        "ids": rng.integers(0, 3, total_k, np.int32),
        "lens": rng.integers(0, 99, len(cu_seqlens_q) - 1, np.int32),
    }
    return q, k, v, {tensor.name: known[tensor.name] for tensor in spec.tensors}


def of_one(values, b, rows, keys):
    parts = {
        "bias": lambda x: x[:, None, keys],
        "row": lambda x: x[None, rows],
        "ids": lambda x: x[None, keys],
        "lens": lambda x: x[[b]],
    }
    return {name: parts[name](x) for name, x in values.items()}


@pytest.mark.parametrize("columns", [8, 24, 40, 136])
@pytest.mark.parametrize(("arch", "split"), [("sm_80", "invariant"), ("sm_90a", "invariant"), ("sm_90a", 1)])
def test_o_of_any_columns_leaves_sixteen_bytes_at_a_time(columns, arch, split):
    spec = spec_of({"head_dim": {"qk": 16, "v": columns}, "mask": "causal", "split": split, "output": "o + 0.5 * v_idx"})
    assert "store_two_rows" in render(plan(spec, arch)).text
    cu_seqlens = ends([70, 0, 9, 130])
    q, k, v, _ = drawn(spec, cu_seqlens, cu_seqlens)
    values = {"cu_seqlens_q": cu_seqlens, "cu_seqlens_k": cu_seqlens}
    o, lse = flashgen.compile(spec, arch, "emulate")(q, k, v, **values)
    judge(spec, {"o": o, "lse": lse}, q, k, v, **values)


@pytest.mark.parametrize("kernel", KERNELS)
@given(lengths=st.lists(st.tuples(LENGTHS, LENGTHS), min_size=1, max_size=5), bad=st.integers(0, 4))
@settings(max_examples=3)
def test_as_each_sequence_alone(kernel, lengths, bad):
    backend, arch, said = KERNELS[kernel]
    spec = spec_of(said)
    cu_seqlens_q, cu_seqlens_k = (ends(x) for x in zip(*lengths, strict=True))
    q, k, v, values = drawn(spec, cu_seqlens_q, cu_seqlens_k)
    slices = [tuple(slice(*pair) for pair in both) for both in zip(*map(itertools.pairwise, (cu_seqlens_q, cu_seqlens_k)), strict=True)]
    for b, (rows, keys) in enumerate(slices):
        if b == bad:  # what one sequence holds is its own affair
            q[rows], k[keys], v[keys] = np.inf, np.nan, np.nan
    lengths = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    o, lse = flashgen.compile(spec, arch, backend)(q, k, v, check=True, **values, **lengths)
    assert o.shape == q.shape
    assert lse.shape == (4, len(q))
    for b, (rows, keys) in enumerate(slices):
        if b != bad:
            found = {"o": o[None, rows], "lse": lse[None, :, rows]}
            judge(alone(spec), found, q[None, rows], k[None, keys], v[None, keys], **of_one(values, b, rows, keys))


@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
def test_how_large_a_neighbour_is_changes_no_bit(arch):
    """Rows of the next sequence lie in the last query tile: large scores of theirs are theirs."""
    spec = Spec(head_dim=16, dtype="bfloat16", layout="thd", scale=1, block={"m": 64, "n": 64}, outputs=["o", "lse"])
    q, k, v = arrays(spec, 1, 1, 1, 16, 300)
    lengths = {"cu_seqlens_q": ends([5, 11]), "cu_seqlens_k": ends([250, 50])}
    attention, found = flashgen.compile(spec, arch, "emulate"), []
    for times in (1, 1e6):
        q[5:] = (times * q[5:].astype(np.float32)).astype(q.dtype)
        found.append([x.copy() for x in attention(q, k, v, **lengths)])
    (o, lse), (beside, lse_beside) = found
    assert o[:5].tobytes() == beside[:5].tobytes()
    assert lse[:, :5].tobytes() == lse_beside[:, :5].tobytes()


WILD = st.sampled_from([-(2**31), -1, 0, 1, 40, 100, 101, 2**31 - 1])


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@given(wild=st.lists(WILD, min_size=2, max_size=40), also=st.randoms())
@settings(max_examples=4)
def test_wild_lengths_leave_the_arrays_alone(arch, wild, also):
    spec = spec_of({"mask": "causal", "score": "s + bias[h, b, kv_idx] + row[b, 0]"})
    q, k, v, values = drawn(spec, ends([100]), ends([100]))
    lengths = {"cu_seqlens_q": np.array(wild, np.int32), "cu_seqlens_k": np.array(also.sample(wild, len(wild)), np.int32)}
    chosen = plan(spec, arch)
    emulate(chosen, render(chosen), q, k, v, values | lengths, checks=False)  # sequences may share rows: no look for races


@pytest.mark.parametrize(
    ("cu_seqlens_q", "cu_seqlens_k", "message"),
    [
        ([1, 9], [0, 9], "cu_seqlens_q begins with 1 and ends with 9: expected 0 and 9"),
        ([0, 9], [0, 8], "cu_seqlens_k begins with 0 and ends with 8: expected 0 and 9"),
        ([0, 5, 4, 9], [0, 5, 6, 9], r"cu_seqlens_q\[2\] is 4: it decreases there"),
        ([0, 9], [0, 5, 9], r"cu_seqlens_k has shape \[3\]: expected \[2\], \[b \+ 1\]"),
        ([], [0, 9], r"cu_seqlens_q has shape \[0\]: expected \[b \+ 1\]"),
    ],
)
def test_what_cannot_be_is_told(cu_seqlens_q, cu_seqlens_k, message):
    spec = spec_of({})
    q, k, v, _ = drawn(spec, ends([9]), ends([9]))
    lengths = {"cu_seqlens_q": np.array(cu_seqlens_q, np.int32), "cu_seqlens_k": np.array(cu_seqlens_k, np.int32)}
    with pytest.raises(CallError, match=message):
        flashgen.compile(spec, backend="interpreter")(q, k, v, check=True, **lengths)


def test_shapes_are_told_by_their_names():
    spec = spec_of({"score": "s + row[b, q_idx]"})
    q, k, v, values = drawn(spec, ends([9]), ends([9]))
    attention = flashgen.compile(spec, backend="interpreter")
    lengths = {"cu_seqlens_q": ends([9]), "cu_seqlens_k": ends([9])}
    with pytest.raises(CallError, match=r"q has 4 axes, .*: expected 3, \[total_q, Hq, 16\]"):
        attention(q[None], k, v, **values, **lengths)
    with pytest.raises(CallError, match=r"row has shape \[8\]: axis 0 is indexed by q_idx, of which there are 9"):
        attention(q, k, v, row=values["row"][:8], **lengths)
    with pytest.raises(CallError, match=r"a spec with layout thd takes sequences one behind the other"):
        flashgen.attention(q, k, v, layout="thd")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"tensors": {"x": {"shape": ["hq", "kv_len"], "dtype": "float32"}}}, "x has kv_len without b before it"),
        ({"tensors": {"x": {"shape": ["b", "q_len", "kv_len"], "dtype": "bool"}}}, "x has q_len and kv_len: of packed sequences"),
        ({"tensors": {"x": {"shape": ["b", "q_words"], "dtype": "int32"}}}, r"x has \(q_len \+ 31\) // 32"),
        ({"cache": "contiguous"}, r"cache: contiguous is of arrays \[b, ...\]"),
    ],
)
def test_specs_that_cannot_be(said, message):
    with pytest.raises(SpecError, match=message):
        Spec(head_dim=16, dtype="float16", layout="thd", **said)


def test_a_sequence_reads_its_own_rows():
    spec = Spec(head_dim=16, dtype="float16", layout="thd", mask="ids[b + 1, kv_idx] > 0", tensors={"ids": TENSORS["ids"]})
    with pytest.raises(SpecError, match="ids is read at another sequence than b"):
        plan(spec, "sm_90a")


def test_what_no_kernel_serves_yet():
    with pytest.raises(PlanError, match="no kernel serves"):
        plan(Spec(head_dim=16, layout="thd", dtype="float32", schedule="two_pass"), "sm_90a")
