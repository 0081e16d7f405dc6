"""`flashgen bench` as far as it goes without a GPU; what it measures is in tests/bench, what a GPU says in tests/gpu."""

import json
from dataclasses import replace

import numpy as np
import pytest

from flashgen.bench.cases import Case
from flashgen.bench.peers import OURS, Implementation, prepare_dense, prepare_flashgen
from flashgen.bench.run import Measured, Results, Skipped
from flashgen.cli import bench
from flashgen.runtime import device
from flashgen.runtime.clock import Reading
from flashgen.spec import Spec

SPEC = Spec(head_dim=64, dtype="float16", mask="causal", name="mine")


def results():
    _, cases = bench.cases([SPEC], [512, 1024])
    measured = [Measured(one, name, ms, 5.0, 1.0, 0.0, 0.5) for one in cases for name, ms in (("flashgen", 1.0), ("cudnn", 2.0))]
    return Results(measured, [Skipped(cases[0].name, "flash", "no words"), Skipped(cases[1].name, "flash", "no words")])


def test_specs_at_lengths_or_the_grid():
    suite, cases = bench.cases([SPEC], [100])
    assert (suite, [c.name for c in cases]) == ("specs", ["causal 64 float16 100"])
    suite, cases = bench.cases([], [512])
    assert (suite, len(cases)) == ("grid", 6)


def test_a_mode_has_cases_of_its_own():
    suite, cases = bench.cases([], [1024], "decode")
    assert (suite, {(c.q_len, c.seqlen, c.batch, c.sizes.kv_heads) for c in cases}) == ("decode", {(1, 1024, b, 8) for b in (1, 16, 64)})
    assert cases[0].variant == "full"  # one query sees all keys, so peers have words for it
    suite, cases = bench.cases([SPEC], [1024], "packed")
    assert (suite, [c.name for c in cases]) == ("packed", ["mine 64 float16 1024", "mine 64 float16 1024, unequal"])
    assert {(c.spec.layout, c.sizes.q_len) for c in cases} == {("thd", 16 * 1024)}
    assert cases[1].ends[:3] == (0, 544, 1152)


@pytest.mark.parametrize(("mode", "unit"), [("decode", "GB/s"), ("packed", "TFLOP/s")])
def test_a_mode_is_measured_checked_and_drawn(mode, unit, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench, "environment", lambda: {"gpu": "Some Card", "driver": "1", "versions": {}, "commit": "abc"})
    monkeypatch.setattr(bench, "DeviceClock", FakeClock)
    monkeypatch.setattr(bench.arrays, "cupy", lambda: np)
    spec = Spec(head_dim=8, dtype="float16", mask="causal", name="mine")
    small = [replace(one, batch=2, heads=1) for one in bench.cases([spec], [40], mode)[1][-2:]]
    contenders = [Implementation(OURS, "flashgen", prepare_flashgen), Implementation(f"{OURS} dense", "flashgen", prepare_dense)]
    found, results = bench.bench(mode, [(small, contenders)], tmp_path)
    assert {(row["mode"], "gb_s" in row) for row in found["rows"]} == {(mode, mode == "decode")}
    assert {row["implementation"] for row in found["rows"]} == ({OURS} if mode == "decode" else {OURS, f"{OURS} dense"})
    assert (tmp_path / f"{mode}_Some_Card.png").exists()
    assert not bench.failed(results)
    bench.report(found, results)
    assert f"{mode}, {unit}" in capsys.readouterr().out


def test_the_report_names_the_ratio_and_who_was_not_timed(capsys):
    found = {"gpu": "Some Card", "host_us": {"flashgen": 5.0, "cudnn": 20.0}}
    bench.report(found, results())
    out = capsys.readouterr().out
    assert out.count("2.00") == 2
    assert "flash: no words (causal 64 float16 512 and 1 more)" in out
    assert "flashgen 5, cudnn 20" in out


class FakeClock:
    def read(self, run, calls):  # noqa: ARG002
        run()
        return Reading(1.0, 0.01)


def test_everything_is_kept_after_each_case(monkeypatch, tmp_path):
    """Two jobs with contenders of their own; the files are there before the last case is."""
    monkeypatch.setattr(bench, "environment", lambda: {"gpu": "Some Card", "driver": "1", "versions": {}, "commit": "abc"})
    monkeypatch.setattr(bench, "DeviceClock", FakeClock)
    monkeypatch.setattr(bench.arrays, "cupy", lambda: np)
    ours = Implementation(OURS, "flashgen", prepare_flashgen)
    small = [Case(Spec(head_dim=8, dtype=dtype), 32, 1, 1, "full") for dtype in ("float32", "float16")]
    seen = []

    def peek(case, tensors):
        seen.append((tmp_path / "specs_Some_Card.json").exists())
        return prepare_flashgen(case, tensors)

    jobs = [(small[:1], [ours]), (small[1:], [ours, Implementation("peer", "numpy", peek)])]
    found, results = bench.bench("specs", jobs, tmp_path)
    assert seen == [True]
    assert [(r["dtype"], r["implementation"]) for r in found["rows"]] == [("float32", OURS), ("float16", OURS), ("float16", "peer")]
    assert json.loads((tmp_path / "specs_Some_Card.json").read_text()) == found
    assert (tmp_path / "specs_Some_Card.png").exists()
    assert not bench.failed(results)


def test_it_failed_only_where_flashgen_did():
    found = results()
    assert not bench.failed(found)
    found.skipped.append(Skipped("a case", "cudnn", "wrong: much", wrong=True))
    assert not bench.failed(found)
    for ours in ("flashgen", "flashgen mma.sync"):
        assert bench.failed(Results(found.measured, [Skipped("a case", ours, "wrong: much", wrong=True)]))


@pytest.mark.skipif(device.missing() is None, reason="there is a GPU")
def test_without_a_gpu_it_says_so(flashgen):
    ran = flashgen("bench", "causal", "--length", "512")
    assert ran.code == 2
    assert ran.err.startswith("flashgen: ")
    assert "Traceback" not in ran.err
