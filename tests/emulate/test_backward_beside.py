"""A backward on Hopper whose own warps round the sums of dq, as soon as all key tiles of a head have added to them."""

from dataclasses import replace

import pytest

from flashgen.emulate import EmulationFault, emulate_backward
from flashgen.plan.backward import plan_backward
from flashgen.render import render
from flashgen.spec import Spec
from tests.plan.gradients import given, judge

CASES = {  # columns that do not fill a part, queries by halves or columns by halves, rows beyond the end, heads that share keys, no keys
    "halves of queries": ({"head_dim": 64, "mask": "full"}, (1, 2, 1, 300, 200)),
    "halves of columns": ({"head_dim": 128, "mask": "causal"}, (1, 2, 2, 170, 300)),
    "columns of no part": ({"head_dim": {"qk": 72, "v": 24}, "mask": "full"}, (2, 1, 1, 40, 300)),
    "few columns": ({"head_dim": 24, "mask": "window(60, 20)"}, (1, 4, 2, 200, 260)),
    "no keys": ({"head_dim": 64, "mask": "full"}, (1, 1, 1, 140, 0)),
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


def test_shares_of_query_heads_are_counted():
    spec = Spec(head_dim=64, dtype="bfloat16", backward=True)
    program, arrays = plan_backward(spec, "sm_90a", 0, 512, head_shares=2), given(spec, 1, 4, 1, 140, 260)
    assert program.main.finish == "beside"
    judge(spec, emulate_backward(program, render(program), arrays), arrays)


def test_sums_in_turns_of_packed_sequences_and_by_copies_are_rounded_after():
    for said in ({"head_dim": 64, "deterministic": True}, {"head_dim": 64, "layout": "thd"}, {"head_dim": 128}):
        program = plan_backward(Spec(dtype="bfloat16", backward=True, **said), "sm_90a")
        assert (program.main.finish, "finish_queries" in program.by_entry) == ("after", True), said


PLACES = (
    "max(2 * p.section, 264 / max(1, Sequence{p, 0}.key_tiles()) + 2)",
    "2",
)  # of sums, where a section is one head: few, to be taken again


def of_few_places(program):
    source = render(program)
    assert source.text.count(PLACES[0]) == 1
    return replace(source, text=source.text.replace(*PLACES))


@pytest.mark.parametrize("shape", [(1, 5, 5, 150, 200), (2, 6, 3, 100, 300)])
def test_places_of_sums_are_taken_again(shape):
    spec, program = planned({"head_dim": 64, "mask": "full"})
    arrays = given(spec, *shape)
    for seed in range(3):
        judge(spec, emulate_backward(program, of_few_places(program), arrays, seed=seed), arrays)


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
    spec, program = planned({"head_dim": 64, "mask": "full"})
    source = of_few_places(program)
    assert source.text.count(old) == 1
    arrays, faulty = given(spec, 1, 5, 5, 150, 300), replace(source, text=source.text.replace(old, new))
    with pytest.raises(EmulationFault, match=shown):
        _ = [emulate_backward(program, faulty, arrays, seed=seed) for seed in range(4)]
