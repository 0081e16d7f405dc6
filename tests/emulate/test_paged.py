"""Keys in pages: each kernel against the same keys in one piece, whose pages lie anywhere, among others full of NaN."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flashgen
from flashgen.bench.paged import in_pages, table
from flashgen.errors import CallError, PlanError, SpecError
from flashgen.expr.meaning.reference import reference
from flashgen.plan import plan
from flashgen.spec import Spec
from tests.plan.agreement import judge

ROOM = 256
KERNELS = {
    "interpreter": ("interpreter", "sm_90a", {"mask": "causal & window(40, 0)", "cache": {"page": 4}}),
    "wgmma": ("emulate", "sm_90a", {"mask": "causal & window(40, 0)", "cache": {"page": 16}}),
    "wgmma, a page a tile": ("emulate", "sm_90a", {"mask": "causal", "cache": {"page": 64}, "layout": "bhsd"}),
    "wgmma, large pages": ("emulate", "sm_90a", {"dtype": "bfloat16", "cache": {"page": 256}, "block": {"m": 64, "n": 48}}),
    "mma_sync": ("emulate", "sm_80", {"mask": "causal", "softmax": "off_by_one", "cache": {"page": 8}}),
    "mma_sync, small pages": ("emulate", "sm_80", {"mask": "causal & window(40, 0)", "cache": {"page": 1}, "layout": "bhsd"}),
    "passes": ("emulate", "sm_80", {"schedule": "two_pass", "cache": {"page": 64}}),
    "keys outer": ("emulate", "sm_80", {"schedule": {"normalize": "each_step", "outer": "kv"}, "cache": {"page": 2}}),
    "reads": (
        "emulate",
        "sm_90a",
        {"score": "s + bias[h, kv_len - 1 - kv_idx]", "mask": "kv_idx % 3 != kv_len % 3", "cache": {"page": 32}},
    ),
    "a sequence's reads": ("emulate", "sm_80", {"score": "s + own[b, kv_idx]", "mask": "causal", "cache": {"page": 16}}),
}
TENSORS = {
    "bias": {"shape": ["hq", "kv_len"], "dtype": "float32"},
    "own": {"shape": ["b", "kv_len"], "dtype": "float32"},
}
ANY = st.sampled_from([0, 1, 63, 64, 65, 128, ROOM - 1, ROOM]) | st.sampled_from([-1, -(2**31), ROOM + 1, 2**31 - 1])
NO_PAGE = [-1, -(2**31), 2**31 - 1, 10**6]


def spec_of(said):
    tensors = {name: how for name, how in TENSORS.items() if name in said.get("score", "")}
    return Spec(**{"head_dim": 16, "dtype": "float16", "outputs": ["o", "lse"], "tensors": tensors, **said})


def drawn(spec, lengths, q_len, seed=0):
    """q, k and v in pages, and what else a call gives. Pages that no key of a sequence lies in are none, or hold NaN."""
    rng, batch = np.random.RandomState(seed), len(lengths)
    q = rng.standard_normal((batch, 4, q_len, 16)).transpose(spec.order.from_heads_first)
    block_table, there = table(batch, ROOM // spec.page, rng), np.clip(lengths, 0, ROOM)
    keys = [rng.standard_normal((batch, 2, ROOM, 16)).astype(spec.element.numpy) for _ in range(2)]
    for b, n in enumerate(there):  # whatever lies beyond is nobody's
        keys[0][b, :, n:], keys[1][b, :, n:] = np.nan, np.inf
        block_table[b, -(-n // spec.page) :] = rng.choice(NO_PAGE, ROOM // spec.page - -(-n // spec.page))
        if "window(40" in spec.mask:  # pages that no query sees any more
            gone = max(0, n - q_len - 40) // spec.page
            block_table[b, :gone] = rng.choice([*NO_PAGE, *block_table[b, :gone]], gone)
            keys[0][b, :, : gone * spec.page], keys[1][b, :, : gone * spec.page] = np.nan, np.inf
    k, v = (in_pages(spec, x, block_table) for x in keys)
    values = {name: rng.standard_normal((4 if name == "bias" else batch, ROOM)).astype(np.float32) for name in TENSORS}
    values = {tensor.name: values[tensor.name] for tensor in spec.tensors}
    return q.astype(spec.element.numpy), k, v, {**values, "kv_lens": np.array(lengths, np.int32), "block_table": block_table}


@pytest.mark.parametrize("kernel", KERNELS)
@given(lengths=st.lists(ANY, min_size=1, max_size=3), q_len=st.sampled_from([1, 5, 70]))
@settings(max_examples=2)
def test_as_keys_in_one_piece(kernel, lengths, q_len):
    backend, arch, said = KERNELS[kernel]
    spec = spec_of(said)
    q, k, v, values = drawn(spec, lengths, q_len)
    o, lse = flashgen.compile(spec, arch, backend)(q, k, v, **values)
    judge(spec, {"o": o, "lse": lse}, q, k, v, **values)


@pytest.mark.parametrize("split", [1, 3])
def test_k_and_v_are_views_of_one_tensor_and_pages_that_are_none_hold_zeros(split):
    spec = spec_of({"mask": "causal", "cache": {"page": 32}, "split": split})
    q, k, v, values = drawn(spec, [200, 77], 3)
    values["block_table"][0, 1], values["block_table"][1, 0] = -5, 2**31 - 1
    both = np.stack([k, v], axis=1)  # [pages, 2, page, Hk, D]
    k, v = both[:, 0], both[:, 1]
    o, lse = flashgen.compile(spec, "sm_90a", "emulate")(q, k, v, **values)
    judge(spec, {"o": o, "lse": lse}, q, k, v, **values)


def test_o_leaves_through_the_place_of_a_key_tile():
    spec = Spec(head_dim=192, dtype="float16", mask="causal", outputs=["o", "lse"], cache={"page": 16})
    assert plan(spec, "sm_90a").attention.pipeline.output_place == "keys"
    rng = np.random.RandomState(0)
    shapes = [(2, 2, 160, 192), *[(2, 1, ROOM, 192)] * 2]
    q, k, v = (rng.standard_normal(shape).astype(np.float16) for shape in shapes)
    values = {"kv_lens": np.array([230, 0], np.int32), "block_table": table(2, ROOM // 16, rng)}
    q, k, v = q.transpose(spec.order.from_heads_first), *(in_pages(spec, x, values["block_table"]) for x in (k, v))
    o, lse = flashgen.compile(spec, "sm_90a", "emulate")(q, k, v, **values)
    judge(spec, {"o": o, "lse": lse}, q, k, v, **values)


def test_copies_of_any_width():
    spec = spec_of({"mask": "causal", "cache": {"page": 4}})
    q, k, v, values = drawn(spec, [90], 5)
    k, v = (np.ascontiguousarray(x.transpose(3, 0, 1, 2)).transpose(1, 2, 3, 0) for x in (k, v))  # the last axis has gaps
    o, lse = flashgen.compile(spec, "sm_90a", "emulate")(q, k, v, **values)
    judge(spec, {"o": o, "lse": lse}, q, k, v, **values)


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_the_reference_knows_pages(layout):
    spec = spec_of({"dtype": "float32", "mask": "causal", "layout": layout, "cache": {"page": 4}})
    q, k, v, values = drawn(spec, [7, 0, 30], 5)
    cached = Spec(**(spec.to_json() | {"cache": "contiguous"}))
    axes = spec.order.to_rows_first
    pieces = []
    for x in (k, v):
        rows = np.zeros((3, 30, 2, 16), np.float32)
        for b, n in enumerate(values["kv_lens"]):
            for i in range(n):
                rows[b, i] = x.transpose(axes)[values["block_table"][b, i // 4], i % 4]
        pieces.append(rows.transpose(spec.order.from_rows_first))
    found, expected = reference(spec, q, k, v, **values), reference(cached, q, *pieces, kv_lens=values["kv_lens"])
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_array_equal(x, y)


def changed(name, x):
    return lambda given: {**given, name: x(given[name])}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changed("k", lambda x: x[:, :8]), r"k has shape \[34, 8, 2, 16\], beside q .*: expected \[34, 16, 2, 16\], \[pages, 16, Hk, 16\]"),
        (changed("v", lambda x: x[1:]), r"v has shape \[33, 16, 2, 16\]"),
        (changed("k", lambda x: x[:0]), r"k has shape \[0, 16, 2, 16\], .*: expected \[1, 16"),
        (changed("block_table", lambda x: x[0]), r"block_table has shape \[16\]: expected \[b, pages\]"),
        (changed("block_table", lambda x: x[:1]), r"block_table has shape \[1, 16\]: expected \[2, 16\]"),
        (changed("block_table", lambda x: x.astype(np.int64)), "block_table is int64: lengths and pages are int32. Cast it"),
        (changed("block_table", lambda x: x.T.copy().T), "block_table has strides .*: it has to be contiguous"),
        (changed("kv_lens", lambda x: x + 250), r"kv_lens\[0\] is 257: the pages of a sequence have place for 256 keys"),
        (changed("block_table", lambda x: x + 40), r"block_table\[0, 0\] is .*: k has 34 pages; one that was given back is negative"),
    ],
)
def test_what_cannot_be_is_told(change, message):
    spec = spec_of({"dtype": "float32", "cache": {"page": 16}})
    q, k, v, values = drawn(spec, [7, 200], 2)
    with pytest.raises(CallError, match=message):
        flashgen.compile(spec, backend="interpreter")(**change({"q": q, "k": k, "v": v, **values}), check=True)


def test_no_pages_in_a_table():
    spec = spec_of({"cache": {"page": 16}})
    q, k, v, values = drawn(spec, [9, 0], 2)
    for backend in ("interpreter", "emulate"):
        o, lse = flashgen.compile(spec, "sm_90a", backend)(q, k, v, kv_lens=values["kv_lens"], block_table=np.zeros((2, 0), np.int32))
        assert not o.any()
        assert (lse == -np.inf).all()


def test_pages_in_a_spec():
    for page in (0, 3, 512, "16", 16.0):
        with pytest.raises(SpecError, match=r"page: expected a power of two from 1 to 256"):
            Spec(head_dim=16, dtype="float16", cache={"page": page})
    with pytest.raises(SpecError, match="gradients"):
        Spec(head_dim=16, dtype="float16", cache={"page": 16}, backward=True)
    with pytest.raises(PlanError, match="without pages"):
        plan(Spec(head_dim=16, dtype="float32", cache={"page": 16}, schedule="two_pass"), "sm_90a")
    assert Spec(**(said := spec_of({"cache": {"page": 16}}).to_json())).to_json() == said
