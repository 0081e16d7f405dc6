"""Gradients where tiles are listed, by a call or because a mask shows them: kernels and interpreter beside the reference, under the race
checker."""

import functools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from flashgen.bench.lists import some_blocks
from flashgen.emulate import EmulationFault, emulate_backward
from flashgen.errors import PlanError
from flashgen.interpret import interpret_backward
from flashgen.plan.backward import plan_backward
from flashgen.plan.geometry import Sizes
from flashgen.render import render
from flashgen.spec import Spec
from tests.plan.gradients import completed, given, judge

INDICES = {"m": 64, "n": 64, "lists": "idx"}
BITMAP = {"m": 96, "n": 128, "lists": "idx", "kind": "bitmap"}
CASES = {
    "mma_sync": ("sm_80", {"blocks": INDICES, "mask": "causal"}),
    "few": ("sm_80", {"blocks": INDICES | {"m": 16, "n": 16, "heads": "hk"}, "mask": "window(90, 20)"}),
    "wgmma": ("sm_90a", {"blocks": INDICES | {"m": 128, "n": 128}, "mask": "causal", "layout": "bhsd"}),
    "in order": ("sm_90a", {"blocks": INDICES | {"n": 128}, "deterministic": True}),
    "pair": ("sm_90a", {"blocks": BITMAP, "head_dim": 136}),
    "mma_sync in order": ("sm_80", {"blocks": INDICES | {"m": 48, "n": 16, "heads": "hk"}, "deterministic": True, "mask": "causal"}),
    "wide, in order": ("sm_89", {"blocks": BITMAP, "deterministic": True, "head_dim": {"qk": 136, "v": 24}}),
    "mask, in order": ("sm_80", {"mask": "kv_idx // 64 % 3 == q_idx // 128 % 3", "deterministic": True}),
    "mask": ("sm_90a", {"mask": "kv_idx // 64 % 3 == q_idx // 128 % 3"}),
    "mask of heads": ("sm_80", {"mask": "(kv_idx // 64 + h) % 9 == q_idx // 128 % 9"}),
}


@functools.cache
def planned(name):
    arch, said = CASES[name]
    program = plan_backward(Spec(**{"head_dim": 16, "dtype": "float16", "backward": True, **said}), arch)
    assert "query_lists" in program.by_entry
    return program, render(program)


@pytest.mark.parametrize("name", CASES)
@drawn(st.data())
@settings(max_examples=2)
def test_key_tiles_meet_the_query_tiles_of_lists(name, data):
    program, source = planned(name)
    spec, kv_heads, seed = program.spec, data.draw(st.integers(1, 2)), data.draw(st.integers(0, 99))
    shape = (
        data.draw(st.integers(1, 2)),
        kv_heads * data.draw(st.integers(1, 2)),
        kv_heads,
        data.draw(st.integers(1, 290)),
        data.draw(st.integers(0, 300) | st.sampled_from([0, 1, 128])),
    )
    sizes = Sizes(**dict(zip(("batch", "heads", "kv_heads", "q_len", "kv_len"), shape, strict=True)))
    values = {"idx": some_blocks(spec, sizes, np.random.RandomState(seed))} if spec.blocks else {}
    arrays = given(spec, *shape, seed=seed, dlse=True, **values)
    judge(spec, emulate_backward(program, source, arrays, values, seed=seed), arrays, **values)
    for planned_for in (program, plan_backward(spec, "host")):
        judge(spec, interpret_backward(planned_for, arrays, values), arrays, **values)


@pytest.mark.parametrize("name", ["mma_sync in order", "wide, in order", "mask, in order", "in order"])
def test_in_order_is_the_same_in_every_run(name):
    """Blocks may run in any order, which the seed draws; 1: as early as copies can arrive."""
    program, source = planned(name)
    assert ("key_lists" in program.by_entry) == (program.skeleton == "backward_sm80")
    sizes = Sizes(batch=1, q_len=140, kv_len=300, heads=4, kv_heads=2)
    values = {"idx": some_blocks(program.spec, sizes, np.random.RandomState(3))} if program.spec.blocks else {}
    arrays = given(program.spec, 1, 4, 2, 140, 300, dlse=True, **values)
    first, *others = (emulate_backward(program, source, arrays, values, seed=seed) for seed in (0, 1, 5, 6))
    judge(program.spec, first, arrays, **values)
    for each in others:
        assert all((each[name] == x).all() for name, x in first.items())


FAULTS = {  # what is written instead of what
    "the bits of another query tile": ("listed.x >> block % 32 & 1", "listed.x >> (block + 1) % 32 & 1"),
    "no mask": ("step<true>(tile);", "step<false>(tile);"),
    "the list of another head": ("+ head) * Sequence{p, batch}.key_tiles() + tile", ") * Sequence{p, batch}.key_tiles() + tile"),
    "a key tile too few": ("end = 32 * word + 32 - __clz(some), count += __popc(some);\n  }\n  if (lane == 0) p.key_spans", None),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(fault):
    program, source = planned("mma_sync in order")
    right, wrong = FAULTS[fault]
    text = source.text.replace(right, wrong or right.replace("+ 32 -", "+ 31 -"))
    assert text != source.text
    idx = some_blocks(program.spec, Sizes(batch=1, q_len=140, kv_len=300, heads=4, kv_heads=2), np.random.RandomState(3))
    arrays = given(program.spec, 1, 4, 2, 140, 300, idx=idx)
    with pytest.raises((AssertionError, EmulationFault)):
        judge(program.spec, emulate_backward(program, replace(source, text=text), arrays, {"idx": idx}), arrays, idx=idx)


@pytest.mark.parametrize("seed", range(4))
def test_loads_come_while_a_warp_of_their_block_looks_for_its_turn(seed):
    """A block adds to one query tile twice in a row: the second turn comes once what the first adds has been loaded."""
    program, source = planned("in order")
    idx = np.array([[[[2, 0, -1], [-1, 1, -1]], [[2, -1, -1], [1, 2, -1]]]], np.int32)
    arrays = given(program.spec, 2, 2, 2, 65, 257, seed=18, dlse=True, idx=idx)
    judge(program.spec, emulate_backward(program, source, arrays, {"idx": idx}, seed=seed), arrays, idx=idx)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("mask", ["(kv_idx // 64 + hk) % 9 == q_idx // 128 % 9", "(kv_idx // 64 + hk) % 9 == (q_idx // 128 + b) % 9"])
def test_a_mask_that_the_query_heads_of_a_key_value_head_share(mask, arch):
    spec = Spec(head_dim=16, dtype="float16", mask=mask, backward=True)
    program = plan_backward(spec, arch)
    assert program.looked_at.endswith("kv_heads")
    arrays = given(spec, 2, 4, 2, 200, 330)
    judge(spec, emulate_backward(program, render(program), arrays, {}), arrays)


@pytest.mark.parametrize(
    ("arch", "blocks", "deterministic"),
    [("sm_80", INDICES, False), ("sm_80", INDICES, True), ("sm_90a", BITMAP | {"m": 64, "heads": "hk"}, False)],
)
def test_lists_of_packed_sequences(arch, blocks, deterministic):
    """The lists of a sequence count from its first query; of some queries there are none."""
    spec = Spec(head_dim=16, dtype="float16", mask="causal", layout="thd", blocks=blocks, backward=True, deterministic=deterministic)
    lengths = {"cu_seqlens_q": [70, 0, 130, 5], "cu_seqlens_k": [90, 30, 260, 0]}
    values = {name: np.cumsum([0, *each], dtype=np.int32) for name, each in lengths.items()}
    total_q, total_k = (int(x[-1]) for x in values.values())
    lists = some_blocks(spec, Sizes(batch=4, q_len=total_q, kv_len=total_k, heads=4, kv_heads=2), np.random.RandomState(5))
    values["idx"] = lists[:, :, :2]
    random = np.random.RandomState(0)
    arrays = completed(
        spec, *(random.standard_normal((n, h, 16)).astype(np.float16) for n, h in ((total_q, 4), (total_k, 2), (total_k, 2))), **values
    )
    program = plan_backward(spec, arch)
    judge(spec, emulate_backward(program, render(program), arrays, values, seed=2), arrays, **values)
    judge(spec, interpret_backward(program, arrays, values), arrays, **values)


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ({"blocks": INDICES | {"m": 20}}, "multiples of 16"),
        ({"blocks": INDICES | {"n": 8}}, "in a backward, and in packed sequences, multiples of 16"),
    ],
)
def test_what_no_kernel_does_is_refused(said, what):
    with pytest.raises(PlanError, match=what):
        plan_backward(Spec(head_dim=16, dtype="float16", backward=True, **said), "sm_80")
