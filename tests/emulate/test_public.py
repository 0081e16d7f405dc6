"""Faults that were reported of others' kernels are found, each in a small one, and right programs that were called wrong are not."""

import re
from pathlib import Path

import pytest

from tests.emulate.public.cases import CASES, found

PAGE = (Path(__file__).parents[2] / "docs" / "emulator.md").read_text()
SEEDS = range(4)


@pytest.mark.parametrize("name", CASES)
def test_right_programs_are_silent(name):
    case = CASES[name]
    assert not [report for right in case["rights"] for seed in SEEDS if (report := found(case, right, seed))]


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case["faults"]])
def test_faults_are_found(name):
    case = CASES[name]
    for fault, patterns in case["faults"].items():
        reports = [found(case, int(fault), seed) for seed in SEEDS]
        told = [bool(re.search("|".join(patterns), report)) for report in reports]
        assert any(told) if int(fault) in case["adverse"] else all(told), reports


def test_the_page_has_every_case():
    numbers = {f"P{i:02}" for i in range(1, 52)} | {f"N{i:02}" for i in range(1, 7)}
    cases = {name.partition(",")[0] for name in CASES}
    rows = dict(re.findall(r"^\| ([PN]\d\d) \| .*? \| (.*?) \|$", PAGE, re.MULTILINE))
    assert set(rows) == numbers
    assert {name for name, said in rows.items() if not said.startswith("not said:")} == cases & numbers
    faults = sum(name.startswith("P") for name in cases)
    assert f"{faults} of the 51 faults are found, and none of the right programs is called wrong" in PAGE
