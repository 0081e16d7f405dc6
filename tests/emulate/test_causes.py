"""A report says to look at the cause, where several faults look alike."""

import re

import pytest

from tests.emulate.public.cases import CASES, found

CAUSES = {  # case, fault: of every seed's report, or of one at least
    ("P16", 1): r"the bytes that mbarrier.arrive.expect_tx announces for `bar\[0\]`, 16 more than its copies bring",
    ("P16", 2): r"the bytes of mbarrier.arrive.expect_tx: the sum of all copies of the phase",
    ("P26", 1): "a way back from the waiting warps to it|phase ends without knowing|race: ",
    ("P45", 1): "look at: the registers of all warpgroups after setmaxnreg",
    ("P22", 2): "threads 1-63 have returned|threads .* have returned",
}


@pytest.mark.parametrize(("name", "fault"), CAUSES)
def test_the_cause_comes_first(name, fault):
    for seed in range(3):
        assert re.search(CAUSES[name, fault], found(CASES[name], fault, seed))


def test_a_missing_syncwarp_is_named_where_the_elected_lane_arrives():
    reports = [found(CASES["P25"], 1, seed) for seed in range(6)]
    assert any("__syncwarp before lane 0 releases for its warp, at threads.cu:" in report for report in reports)


def test_an_early_release_is_not_told_as_a_wrong_parity_alone():
    for seed in range(4):
        assert "they were released too early, at barriers.cu:" in found(CASES["Q4"], 1, seed)
