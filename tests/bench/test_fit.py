"""Fitting the cost model: a card that a test makes up is found again."""

import json
import tomllib
from pathlib import Path

import pytest

from benchmarks import fit
from flashgen.arch import by_name
from flashgen.plan.costs import model
from flashgen.plan.search import scored
from flashgen.runtime.clock import Reading
from tests.runtime.launches import launches
from tests.runtime.test_arrays import on_gpu

__all__ = ["launches"]
ARCH = by_name("sm_90a")
TRUE = {"exposed": 0.45, "query_tile": 4500, "lone_warp": 3.2}  # of the card; its clock is another as well


@pytest.fixture(scope="module")
def numbers():
    known = dict(model.of_arch(ARCH, "wgmma").numbers) | TRUE
    known["step"] = [180, 180, 300]
    return known


@pytest.fixture(scope="module")
def rows(numbers):
    """Times as such a card would take them."""
    found = []
    with model.trying("wgmma", numbers):
        for spec in fit.specs()[1:4]:
            for length in fit.LENGTHS:
                clocks = scored(spec, ARCH, length)
                known = {"spec": spec.name, "head_dim": spec.head_dim.qk, "arch": ARCH.name, "length": length}
                found += [{**known, "candidate": name, "ms": 3e-3 * clocks[name]()} for name in fit.spread(list(clocks))]
    return found


def test_a_fit_explains_the_times_and_chooses_by_them(rows, numbers):
    measured = fit.groups(rows, ARCH)
    assert len(measured) == 6
    before = fit.deviation(measured)
    found = fit.fitted("wgmma", fit.tables()["wgmma"], measured)
    assert found.keys() == numbers.keys()
    with model.trying("wgmma", found):
        assert fit.deviation(measured) < before / 3
        assert fit.lost(measured) < 0.005
    assert found["halved"] == numbers["halved"]  # it decides, and is not fitted
    assert found["exposed"] == pytest.approx(0.45, rel=0.25)
    with model.trying("wgmma", numbers):
        assert fit.deviation(measured) < 1e-6
        assert fit.lost(measured) == 0


class Clock:
    """Runs what it is given, and says how often it has run something."""

    def __init__(self):
        self.runs = 0

    def read(self, run, calls):  # noqa: ARG002
        run()
        self.runs += 1
        return Reading(float(self.runs), 0.01)


@pytest.mark.parametrize("arch", ["sm_90a", "sm_90"])
def test_candidates_are_launched_and_timed(launches, monkeypatch, arch):
    """With stand-ins for the card and for arrays in its memory."""
    monkeypatch.setattr(fit, "spread", lambda names: names[::20][:2])
    monkeypatch.setattr(fit, "draw", lambda one, _: {name: on_gpu(shape, one.spec.element.numpy) for name, shape in one.shapes().items()})
    spec, clock = fit.specs()[1], Clock()
    launches.clear()
    found = fit.timed(spec, by_name(arch), 1024, clock)
    names = fit.chosen(spec, by_name(arch))
    assert [row["candidate"] for row in found] == names
    assert len(set(names)) == 2
    assert len(launches) == clock.runs
    (group,) = fit.groups(found, by_name(arch))
    assert len(group.ms) == 2


def test_what_times_say_nothing_of_stays():
    table = fit.tables()["wgmma"]
    assert fit.fitted("wgmma", table, []) == {name: entry["value"] for name, entry in table.items()}


def test_a_file_is_read_as_it_was_written(tmp_path, monkeypatch, rows):
    for name in ("RESULTS", "COSTS"):
        monkeypatch.setattr(fit, name, tmp_path)
    (tmp_path / "h100.toml").write_text((Path(model.__file__).parent / "h100.toml").read_text())
    kept = tmp_path / "fit.json"
    kept.write_text(json.dumps({"gpu": "NVIDIA X9 PCIe", "commit": "abc", "rows": rows[:8]}))
    monkeypatch.setattr("sys.argv", ["fit.py", "--timings", str(kept)])
    fit.main()
    made = tomllib.loads((tmp_path / "x9.toml").read_text())
    assert (made["card"], made["serves"]) == ("NVIDIA X9 PCIe", [])
    assert made["wgmma"].keys() == fit.tables()["wgmma"].keys()
    assert all(entry.keys() == {"value", "unit", "of"} for entry in made["wgmma"].values())


@pytest.mark.parametrize(
    ("card", "name"), [("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA A100-SXM4-80GB", "a100"), ("NVIDIA GeForce RTX 4090", "rtx4090")]
)
def test_a_file_is_named_for_its_card(card, name):
    assert fit.file_of(card).name == f"{name}.toml"
