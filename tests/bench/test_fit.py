"""Fitting the cost model: a card that a test makes up is found again."""

import json
import tomllib
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from threading import current_thread, main_thread
from types import SimpleNamespace

import pytest

from benchmarks import fit
from flashgen.arch import by_name
from flashgen.plan.costs import model
from flashgen.plan.search import scored
from flashgen.runtime.clock import Reading
from tests.runtime.launches import CARD, launches
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


def test_a_card_is_fitted_from_the_first_compilation_to_the_file(launches, monkeypatch, tmp_path, capsys):
    """With stand-ins for the card and for arrays in its memory. Nothing is compiled between two times."""
    ready: set[str] = set()
    late: set[str] = set()

    def built(_, source):
        (late if current_thread() is main_thread() else ready).add(source.digest)
        return SimpleNamespace(cubin=b"")

    clock, known = Clock(), fit.tables()
    stand_ins = {
        "RESULTS": tmp_path,
        "COSTS": tmp_path,
        "WORK": [("softcap", 128)],
        "spread": lambda names: names[::20][:2],
        "draw": lambda one, _: {name: on_gpu(shape, one.spec.element.numpy) for name, shape in one.shapes().items()},
        "DeviceClock": lambda: clock,
        "ProcessPoolExecutor": lambda *_: ThreadPoolExecutor(1),
        "environment": lambda: {"gpu": "NVIDIA H200", "commit": "abc"},
        "tables": lambda: known,
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(fit, name, stand_in)
    monkeypatch.setattr(fit.cache, "binary", built)
    monkeypatch.setattr(fit.device, "current", lambda: CARD)
    monkeypatch.setattr("sys.argv", ["fit.py"])
    launches.clear()
    fit.main()
    assert len(launches) == clock.runs > 0
    assert late == ready
    assert len(ready) == 6  # kernels of sm_90 are the same at both lengths
    kept = json.loads((tmp_path / "fit_NVIDIA_H200.json").read_text())["rows"]
    calls = set(product(("sm_90a", "sm_90"), ["softcap"], fit.LENGTHS))
    assert {(row["arch"], row["spec"], row["length"]) for row in kept} == calls
    assert len(kept) == 8
    assert tomllib.loads((tmp_path / "h200.toml").read_text()).keys() == {"card", "serves", "wgmma", "mma_sync"}
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "4 of 4 candidates compiled"
    assert said[1].startswith("sm_90a, softcap 128, 1024 keys: ")


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
