"""A backward on Hopper whose own warps round the sums of dq, as soon as all key tiles of a head have added to them."""

from dataclasses import replace

import pytest

from flashgen.emulate import EmulationFault, emulate_backward
from flashgen.plan.backward import plan_backward
from flashgen.plan.geometry import Sizes
from flashgen.plan.geometry import shape as shape_of
from flashgen.plan.sections import sections
from flashgen.render import render
from flashgen.spec import Spec
from tests.plan.gradients import given, judge

CASES = {  # rows beyond the end; columns that do not fill a part, of several sequences; heads that share keys; no keys
    "whole parts": ({"head_dim": 64}, (1, 2, 1, 300, 200)),
    "columns of no part": ({"head_dim": {"qk": 40, "v": 24}}, (2, 1, 1, 40, 300)),
    "few columns": ({"head_dim": 8}, (1, 4, 2, 200, 260)),
    "no keys": ({"head_dim": 64}, (1, 1, 1, 140, 0)),
}


def planned(said):
    spec = Spec(dtype="bfloat16", backward=True, **said)
    program = plan_backward(spec, "sm_90a", 0, 512)
    assert program.main.finish == "beside"
    assert "finish_queries" not in program.by_entry
    return spec, program


@pytest.mark.parametrize("case", CASES)
def test_beside_the_reference(case):
    said, shape = CASES[case]
    spec, program = planned(said)
    arrays = given(spec, *shape)
    for seed in (0, 1):
        judge(spec, emulate_backward(program, render(program), arrays, seed=seed), arrays)


def test_with_shares_of_query_heads_a_kernel_after_rounds():
    spec = Spec(head_dim=64, dtype="bfloat16", backward=True)
    program, arrays = plan_backward(spec, "sm_90a", 0, 512, head_shares=2), given(spec, 1, 4, 1, 140, 260)
    assert program.main.finish == "after"
    judge(spec, emulate_backward(program, render(program), arrays), arrays)


ROWS = {"rows": {"shape": ["q_len"], "dtype": "float32"}}
CAPPED = {"score": "cap * tanh(s / cap)", "params": {"cap": 5.0}}
OTHERS = ({"deterministic": True}, {"layout": "thd"}, {"mask": "causal"}, CAPPED, {"score": "s + rows[q_idx]", "tensors": ROWS})


@pytest.mark.parametrize("said", [*OTHERS, {"head_dim": 72}])
def test_others_are_rounded_after(said):
    program = plan_backward(Spec(**{"dtype": "bfloat16", "backward": True, "head_dim": 64, **said}), "sm_90a")
    assert (program.main.finish, "finish_queries" in program.by_entry) == ("after", True)


# Of sums, where a section is one head: few places, to be taken again.
PLACES = {
    "!taken_again(p) ? p.heads / p.group * p.batch : max(2 * p.section, 264 / Sequence{p, 0}.key_tiles() + 2)": "2",
    "Sequence{p, 0}.key_tiles() >= FEW_TILES": "true",
}


def of_few_places(program):
    source = render(program)
    text = source.text
    for old, new in PLACES.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    return replace(source, text=text)


@pytest.mark.parametrize("shape", [(1, 5, 5, 150, 200), (2, 6, 3, 100, 300)])
def test_places_of_sums_are_taken_again(shape):
    """Memory is allocated for the places that are used, and no more."""
    spec, program = planned({"head_dim": 64})
    fewer = [replace(x, shape=(2, *x.shape[1:])) if x.name == "dq_sum" else x for x in program.scratch]
    program, arrays = replace(program, scratch=tuple(fewer)), given(spec, *shape)
    for seed in range(3):
        judge(spec, emulate_backward(program, of_few_places(program), arrays, seed=seed), arrays)


@pytest.mark.parametrize(("kv_len", "places"), [(0, 64), (800, 64), (1000, 35), (1100, 31), (4096, 10), (1 << 20, 2)])
def test_sums_have_memory_for_the_places_that_are_used(kv_len, places):
    """As many as the emitted text says: below 8 key tiles all heads', else twice what 132 multiprocessors may be at work at."""
    _, program = planned({"head_dim": 64})
    (sums,) = (scratch for scratch in program.scratch if scratch.name == "dq_sum")
    sizes, text = Sizes(batch=2, q_len=100, kv_len=kv_len, heads=64, kv_heads=32), render(program).text
    assert shape_of(sums, sizes)[:2] == (places, 2)
    assert "constexpr int FEW_TILES = 8;" in text
    assert all(text.count(old) == 1 for old in PLACES)
    assert sections(program).heads(sizes) == 1


FAULTS = {
    "no fence": ("      __threadfence();                   // the additions", "      // the additions", "race"),
    "not all have added": (
        "    ptx::mbarrier_wait(shared + SUMMED + BARRIER_BYTES * (dealt % ",
        "    if (false) ptx::mbarrier_wait(shared + SUMMED + BARRIER_BYTES * (dealt % ",
        "race",
    ),
    "nobody waits": ("    if (first) while (ptx::load_acquire(", "    if (false) while (ptx::load_acquire(", "race"),
    "one key tile is enough": ("< Sequence{p, 0}.key_tiles()) {}", "< 1) {}", "race"),
    "a place that is kept": ("    if (first) ptx::mbarrier_arrive(shared + K_EMPTY + BARRIER_BYTES * slot);\n", "", "deadlock"),
    "the head beside": ("+ work.kv_head, 1);", "+ work.kv_head / 2, 1);", "race|deadlock"),
    "nobody waits for a place": ("< rounded_pieces(p)) {}", "< 0) {}", "race"),
    "a place too early": ("return Sequence{p, 0}.query_tiles() * p.group * DQ_PIECES;", "return 1;", "race"),
    "no fence after zeros": ("      __threadfence();\n      atomicAdd(p.rounded", "      atomicAdd(p.rounded", "race"),
    "a place of another": ("+ work.kv_head - places(p);", "+ work.kv_head - places(p) - 1;", "race"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_show(fault):
    old, new, shown = FAULTS[fault]
    spec, program = planned({"head_dim": 64})
    source = of_few_places(program)
    assert source.text.count(old) == 1
    arrays, faulty = given(spec, 1, 5, 5, 150, 300), replace(source, text=source.text.replace(old, new))
    with pytest.raises(EmulationFault, match=shown):
        _ = [emulate_backward(program, faulty, arrays, seed=seed) for seed in range(4)]
