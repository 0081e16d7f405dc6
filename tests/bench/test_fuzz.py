"""The differential fuzzer runs, counts, finds the same again, and finds what is wrong."""

import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks import fuzz
from tests.plan import any_spec


def test_a_seed_is_the_same_again() -> None:
    first, again, other = (fuzz.drawn_by(seed, any_spec.specs(step=8), 4) for seed in (3, 3, 4))
    assert len(first) == 4
    assert [str(spec) for spec in first] == [str(spec) for spec in again]
    assert first != other


def test_a_page_has_every_family(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.argv", ["fuzz.py", "--minutes", "0", "--seed", "5", "--kinds", "views", "--out", str(tmp_path / "fuzz.md")])
    monkeypatch.setattr(fuzz, "SPECS", 1)
    monkeypatch.setattr(fuzz, "BACKWARDS", 0)
    with pytest.raises(SystemExit) as ended:
        fuzz.main()
    assert ended.value.code == 0
    page = (tmp_path / "fuzz.md").read_text()
    assert re.search(r"1 seeds, 1 specs, [1-9] plans, 0 findings", page)
    assert "| interpreter | 1 |" in page


def test_what_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = fuzz.interpret
    monkeypatch.setattr(fuzz, "interpret", lambda *given: {name: x + np.float32(1) for name, x in right(*given).items()})
    monkeypatch.setattr(fuzz, "emulate", lambda chosen, _, *given: right(chosen, *given))
    assert any("seed 1, interpreter" in finding for finding in fuzz.tried(1, []).findings)


def test_a_process_that_dies_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(number: int, kinds: list[str]) -> fuzz.Tally:
        raise SystemExit(number + len(kinds))

    monkeypatch.setattr(fuzz, "tried", dies)
    heard: list[int] = []
    total, seeds = fuzz.fuzz(7, 0.0, 2, [], lambda tally, seeds: heard.append(seeds + len(tally.findings)))
    assert (seeds, total.findings, heard) == (1, ["seed 7: the process died"], [2])
