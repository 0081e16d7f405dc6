"""Multiprocessors that share a half of the L2 are told from clocks, and kept on disk."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashgen.runtime import halves

CARD: Any = SimpleNamespace(ordinal=0)


def clocks(sides: Any, near: Any, noise: int, seed: int) -> Any:
    """The clocks of multiprocessors on these sides, for lines that are near side 1 where `near` says so."""
    rng = np.random.default_rng(seed)
    apart = np.asarray(sides)[:, None] != np.asarray(near)[None]
    return 315 + 198 * apart + rng.integers(0, noise + 1, apart.shape)


@given(st.integers(30, 90), st.integers(30, 90), st.integers(0, 60), st.integers(0, 1 << 30))
def test_halves_are_told_apart(one: int, other: int, noise: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sides = rng.permutation(np.arange(one + other) < one).astype(np.int32)
    found = halves.parted(clocks(sides, rng.permutation(64) % 2, noise, seed + 1))
    np.testing.assert_array_equal(found, sides ^ sides[0])


@given(st.integers(2, 140), st.integers(0, 60), st.integers(0, 1 << 30))
def test_one_part_has_no_halves(count: int, noise: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    each, line = rng.integers(0, 300, (count, 1)), rng.integers(0, 300, (1, 64))  # far from everything, or a line far from everybody
    assert not halves.parted(300 + each + line + rng.integers(0, noise + 1, (count, 64))).any()


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    seen: list[int] = []

    def latencies(_: Any) -> Any:
        seen.append(1)
        found = np.zeros((256, 64), np.int32)
        found[:132] = clocks(np.arange(132) // 3 % 2, np.arange(64) % 2, 20, 7)
        return found

    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(halves, "_latencies", latencies)
    monkeypatch.setattr(halves, "_uuid", lambda _: "ab12")
    return seen


def test_a_card_is_measured_once(measured: list[int], tmp_path: Path) -> None:
    first, second = halves.table(CARD), halves.table(CARD)
    np.testing.assert_array_equal(first[:132], np.arange(132) // 3 % 2)
    assert not first[132:].any()
    np.testing.assert_array_equal(first, second)
    assert measured == [1]
    assert [path.name for path in (tmp_path / "halves").iterdir()] == ["ab12.json"]


def test_what_was_not_told_apart_is_measured_again(measured: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(halves, "parted", lambda clocks: np.zeros(len(clocks), np.int32))
    assert not halves.table(CARD).any()
    assert not halves.table(CARD).any()
    assert measured == [1, 1]
    assert not (tmp_path / "halves").exists()


@pytest.mark.parametrize("broken", [b"", b"[0, 1]", b"{}", b"[2" + b", 0" * 255 + b"]", b"null"])
def test_a_broken_file_is_measured_anew(measured: list[int], tmp_path: Path, broken: bytes) -> None:
    (tmp_path / "halves").mkdir()
    (tmp_path / "halves" / "ab12.json").write_bytes(broken)
    assert halves.table(CARD)[:132].sum() == 66
    halves.table(CARD)
    assert measured == [1]


def test_where_nothing_can_be_written_it_measures_each_time(measured: list[int], tmp_path: Path) -> None:
    (tmp_path / "halves").write_text("a file where a folder should be")
    assert halves.table(CARD)[:132].sum() == halves.table(CARD)[:132].sum() == 66
    assert measured == [1, 1]
