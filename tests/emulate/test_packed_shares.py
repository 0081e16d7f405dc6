"""Keys of packed sequences in shares, by a list of work that a kernel makes: against the reference, alone and in company, with mistakes."""

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flashgen
from flashgen.emulate import EmulationFault, emulate
from flashgen.errors import PlanError
from flashgen.interpret import interpret
from flashgen.plan import plan
from flashgen.plan.geometry import Sizes, shares, states
from flashgen.plan.shares import Demand
from flashgen.render import render
from flashgen.spec import Spec
from tests.emulate.test_packed_paged import drawn
from tests.emulate.test_shares import SLOPES
from tests.plan.agreement import judge

SPECS: dict[str, dict[str, Any]] = {
    "causal": {"mask": "causal", "block": {"m": 128, "n": 32}},
    "sink": {"mask": "window(90, 0)", "softmax": {"sink": "slopes[h]"}, "tensors": SLOPES, "out_dtype": "float32"},
    "alibi": {
        "mask": "causal & (kv_idx % 7 != q_idx)",
        "score": "10.0 * tanh((s + slopes[h] * (kv_idx - q_idx)) / 10.0)",
        "tensors": SLOPES,
        "outputs": ["o", "lse", "max"],
    },
    "wide": {"head_dim": {"qk": 16, "v": 272}, "block": {"m": 64, "n": 16}},
}
# A spec, an arch, keys of a page (0: none), and rows of all heads of a group in a tile.
CASES = {
    "wgmma": ("causal", "sm_90a", 16, True),
    "wgmma, heads apart": ("alibi", "sm_90a", 0, False),
    "wgmma, a sink": ("sink", "sm_90a", 0, True),
    "mma_sync": ("alibi", "sm_80", 0, True),
    "mma_sync, pages": ("sink", "sm_80", 1, False),
    "slices of v": ("wide", "sm_90a", 0, True),
}
QUERIES, KEYS = st.sampled_from([0, 1, 3, 33, 70]), st.sampled_from([0, 1, 63, 65, 127, 128])


@functools.cache
def planned(name: str, arch: str, page: int, together: bool, split: str | int = "invariant") -> tuple[Any, Any]:
    """Shares of 32 keys, so that small arrays have several."""
    said = {"head_dim": 16, "dtype": "float16", "outputs": ["o", "lse"], "block": {"m": 64, "n": 32}, "split": split, **SPECS[name]}
    spec = Spec(layout="thd", **({"cache": {"page": page}} if page else {}), **said)
    chosen = plan(spec, arch, demand=Demand(shared=True, together=together))
    small = dataclasses.replace(own := chosen.attention.dealing.shares, keys=own.block_n)
    dealing = dataclasses.replace(chosen.attention.dealing, shares=small)
    kernels = [dataclasses.replace(kernel, dealing=dealing) if kernel is chosen.attention else kernel for kernel in chosen.kernels]
    scratch = [dataclasses.replace(s, shape=tuple(small if size == own else size for size in s.shape)) for s in chosen.scratch]
    chosen = dataclasses.replace(chosen, kernels=tuple(kernels), scratch=tuple(scratch))
    return chosen, render(chosen)


def call(spec: Spec, lengths: Any, seed: int = 0) -> Any:
    """q, k, v, and what else a call gives."""
    if spec.page:
        q, k, v, values = drawn(spec, lengths, seed)
    else:
        ends = [np.cumsum([0, *x], dtype=np.int32) for x in zip(*lengths, strict=True)]
        rng, d = np.random.default_rng(seed), spec.head_dim
        shapes = ((ends[0][-1], 4, d.qk), (ends[1][-1], 2, d.qk), (ends[1][-1], 2, d.v))
        q, k, v = (rng.standard_normal(shape).astype(np.float16) for shape in shapes)
        values = dict(zip(("cu_seqlens_q", "cu_seqlens_k"), ends, strict=True))
    return q, k, v, values | {t.name: np.float32([0.5, -0.25, 1, 2]) for t in spec.tensors}


@pytest.mark.parametrize("case", CASES)
@given(lengths=st.lists(st.tuples(QUERIES, KEYS), min_size=1, max_size=5), seed=st.integers(0, 9), blocks=st.integers(1, 3))
@settings(max_examples=2)
def test_as_the_reference(case: str, lengths: Any, seed: int, blocks: int) -> None:
    chosen, source = planned(*CASES[case])
    q, k, v, values = call(chosen.spec, lengths, seed)
    found = emulate(chosen, source, q, k, v, values, seed=seed, blocks=blocks)
    judge(chosen.spec, dict(found), q, k, v, **values)
    if len(q):
        same = interpret(chosen, q, k, v, values)
        np.testing.assert_allclose(found["lse"], same["lse"], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("case", ["wgmma", "mma_sync"])
def test_a_sequence_has_the_same_bits_alone_and_in_company(case: str) -> None:
    """Single tokens with long caches beside a prompt and a chunk, as an engine calls attention."""
    chosen, source = planned(*CASES[case])
    lengths = [(1, 128), (70, 70), (0, 9), (33, 128), (1, 100)]
    q, k, v, values = call(chosen.spec, lengths)
    together, cu_seqlens_q = emulate(chosen, source, q, k, v, values), values["cu_seqlens_q"]
    for b, (n, _) in enumerate(lengths):
        rows = slice(cu_seqlens_q[b], cu_seqlens_q[b + 1])
        own = values | {"cu_seqlens_q": np.int32([0, n])}
        if chosen.spec.page:
            own, keys = own | {"kv_lens": values["kv_lens"][b : b + 1], "block_table": values["block_table"][b : b + 1]}, slice(None)
        else:
            keys = slice(*values["cu_seqlens_k"][b : b + 2])
            own["cu_seqlens_k"] = np.int32([0, keys.stop - keys.start])
        if n:
            alone = emulate(chosen, source, q[rows], k[keys], v[keys], own, seed=b, blocks=1)
            assert alone["o"].tobytes() == together["o"][rows].tobytes()
            assert alone["lse"].tobytes() == together["lse"][:, rows].tobytes()


def test_a_pinned_number_of_shares() -> None:
    chosen, source = planned("causal", "sm_80", 0, True, 3)
    q, k, v, values = call(chosen.spec, [(5, 100), (40, 64)])
    judge(chosen.spec, dict(emulate(chosen, source, q, k, v, values)), q, k, v, **values)
    assert states(chosen.attention.dealing.shares, Sizes(batch=2, q_len=45, kv_len=164, heads=4, kv_heads=2)) == 3 * 45 * 4


@given(st.lists(st.integers(0, 300), min_size=1, max_size=9), st.sampled_from([1, 2, 4]), st.integers(0, 2**17))
def test_there_is_place_for_all_states(q_lens: list[int], group: int, kv_len: int) -> None:
    """Whatever the lengths: the host knows their sum alone."""
    for together in (False, True):
        of = planned("causal", "sm_90a", 16, together)[0].attention.dealing.shares
        sizes = Sizes(batch=len(q_lens), q_len=sum(q_lens), kv_len=kv_len, heads=2 * group, kv_heads=2)
        own = [(n, shares(of, dataclasses.replace(sizes, batch=1, q_len=n))) for n in q_lens]
        assert sum(n * 2 * group * count for n, count in own if count > 1) <= states(of, sizes)


@pytest.mark.parametrize("wild", [[0, 70, -1, 70, 0, 2**31 - 1, 5], [2**31 - 1] * 7, [0, 70] * 3 + [70]])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_wild_lengths_leave_the_arrays_alone(arch: str, wild: list[int]) -> None:
    chosen, source = planned("causal", arch, 0, True)
    q, k, v, values = call(chosen.spec, [(70, 500)])
    values |= {"cu_seqlens_q": np.array(wild, np.int32), "cu_seqlens_k": np.array([0, *[2**31 - 1] * 6], np.int32)}
    emulate(chosen, source, q, k, v, values, checks=False)  # sequences may share rows: no look for races


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("if (work.shares > 1) store_share", "if (work.share) store_share"),
        ("t -= listed(p, PIECES)[batch];", "t -= listed(p, PIECES)[0];"),
        ("if (lane >= lanes) sum = add", "if (lane > lanes) sum = add"),
        ("if (lane == 31) write(p.batch, before);", "if (lane == 31) write(p.batch, sum), write(p.batch - 1, before);"),
        ("SLICES, p.heads * sequence.q_len()", "SLICES, sequence.q_len()"),
        ("first += gridDim.x * ROWS", "first += gridDim.x * ROWS + 1"),
        ("take_share(shares, least_tiles(rows_of(p, sequence)));", ""),
        (
            "const bool exists = block * BLOCK_M + warpgroup * WARPGROUP_ROWS <",
            "const bool exists = block * BLOCK_M + 32 + warpgroup * WARPGROUP_ROWS <",
        ),
        ("own.above += exists ? 0 : max(0, end[range] - begin[range]);", ""),
    ],
    ids=[
        "first shares",
        "work of others",
        "lanes",
        "the end",
        "states apart",
        "rows between",
        "all keys each",
        "rows that exist",
        "tiles are passed",
    ],
)
def test_mistakes_are_found(old: str, new: str) -> None:
    chosen, source = planned("causal", "sm_90a", 16, True)
    assert old in source.text
    q, k, v, values = call(chosen.spec, [(1, 128), (33, 128), (2, 0), (5, 96)] * 10)
    changed = dataclasses.replace(source, text=source.text.replace(old, new))
    with pytest.raises((EmulationFault, AssertionError)):
        judge(chosen.spec, dict(emulate(chosen, changed, q, k, v, values)), q, k, v, **values)


def test_calls() -> None:
    """A call asks for a list of work, and for rows of a group where heads are grouped; a spec may say that keys stay in one piece."""
    for heads, split, lists, grouped in ((2, "invariant", True, False), (8, "invariant", True, True), (8, 1, False, False)):
        spec = Spec(head_dim=16, dtype="float16", layout="thd", mask="causal", split=split)
        attn = flashgen.compile(spec, "sm_80", "emulate")
        q, k = np.ones((9, heads, 16), np.float16), np.ones((9, 2, 16), np.float16)
        values = dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), np.int32([0, 9]))
        program = attn._gpu.choice.serving_arrays(attn.arch, q, k, k, values)
        assert (program.work_list, program.dealing.grouped) == (lists, grouped)
    assert "a list of work" in flashgen.compile(Spec(head_dim=16, dtype="float16", layout="thd"), "sm_80", "emulate").explain()


def test_what_cannot_be_shared_is_said() -> None:
    with pytest.raises(PlanError, match=r"^split is 4: softmax: none has no state"):
        plan(Spec(head_dim=16, dtype="float16", layout="thd", split=4, softmax="none"), "sm_90a")
