"""The ladder without a GPU: every rung is right, counted, told and drawn."""

import dataclasses
import json
import math

import numpy as np
import pytest
from typer.testing import CliRunner

from flashgen.arch import by_name
from flashgen.cli.commands import app
from flashgen.ladder import RUNGS, Shape, climb
from flashgen.ladder.climb import Absent
from flashgen.ladder.gradients import memory
from flashgen.ladder.loops import functions, inner_loops
from flashgen.ladder.overflow import naive, overflow
from flashgen.ladder.page import charts, html
from flashgen.ladder.picture import draw
from flashgen.plan import plan
from flashgen.runtime import device
from flashgen.theory.derive import derive
from tests.pages.stands_alone import check

pytestmark = pytest.mark.skipif(not device.missing(), reason="a GPU is here: tests/gpu climbs on it")
SHAPE = Shape(256, 64, 2, 1, "float16")


@pytest.fixture(scope="module")
def climbed():
    titles = []
    found = climb(SHAPE, [128, 256], titles.append)
    assert len(titles) == 2 * len(RUNGS)
    return found


@pytest.fixture(scope="module")
def page(climbed):
    return html(climbed)


def test_all_rungs_agree(climbed):
    assert [row.rung for row in climbed.rows] == 2 * [rung.name for rung in RUNGS]
    assert all(row.error < 1e-3 for row in climbed.rows)
    assert climbed.lengths == [128, 256]
    assert not climbed.on_gpu
    assert json.loads(json.dumps(climbed.to_json()))["rows"][0]["rung"] == "arrays"


def test_memory_of_all_pairs_is_gone_from_three_passes_on(climbed):
    counted = {name: row.counted.get("memory") for name, row in climbed.of(256).items()}
    assert counted["standard"] == 2 * 256 * 256 * 6
    assert counted["three_pass"] == counted["two_pass"] == counted["each_step"] == counted["fa2"] == counted["fa3"] == 0


def test_naive_softmax_overflows_at_12_and_no_schedule_does():
    assert math.exp(12) > float(np.finfo(np.float16).max)
    assert math.isnan(naive(np.array([0, 12, 11], np.float16), np.array([0, 1, 2], np.float16)))
    lines = overflow()
    assert [line.overflows for line in lines] == [False, True, True, True]
    assert len(lines[-1].safe) == len(RUNGS) - 1
    for line in lines:
        assert all(abs(value - line.exact) < 2e-3 for value in line.safe.values()), line


def test_the_page_stands_alone(page):
    check(page)


def test_times_are_drawn_where_kernels_ran(page, climbed):
    assert "Extra memory of a call" in page
    assert "Time of a call" not in page
    assert len(draw(climbed).axes) == 1
    on_gpu = dataclasses.replace(climbed, on_gpu=True, machine={"gpu": "Card", "driver": "1", "versions": {}})
    assert next(chart.title for chart in charts(on_gpu)) == "Time of a call"
    assert len(draw(on_gpu).axes) == 2


def test_what_did_not_run_is_told(climbed):
    absent = Absent("arrays", 256, "it takes more memory than is free")
    rows = tuple(row for row in climbed.rows if (row.rung, row.length) != ("arrays", 256))
    told = html(dataclasses.replace(climbed, rows=rows, absent=(absent,)))
    assert "arrays did not run at 256: it takes more memory than is free." in told
    assert f"{RUNGS[0].title}</td>" not in told


def test_the_page_tells_every_rung(page):
    for rung in RUNGS:
        assert page.count(f". {rung.title}</h3>") == 1
    assert "No kernel runs here" in page
    assert page.count('<td class="number bad">nan</td>') == 2
    for name in ("advance_tile", "maximum_step", "normalize_row", "multiply_by_sum"):
        assert name in page
    assert page.count("<munderover>") > 50
    assert "\\begin{align*}" in page


@pytest.mark.parametrize("rung", [rung for rung in RUNGS if rung.schedule], ids=lambda rung: rung.name)
def test_inner_loops_are_functions_of_the_text(rung):
    code = inner_loops(rung, rung.arch(None), SHAPE)
    for name in rung.loops:
        assert f" {name}(" in code
    assert code.count("{") == code.count("}")
    assert functions(code, ("no_such",)) == []


def test_the_last_chapter_is_the_gradients(page, climbed):
    chapter = page.partition("And back: the gradients")[2]
    assert chapter.count("<math") >= 5 + len(derive("backward").steps)
    rows = memory(climbed.shape, (1024, 2048), "sm_90a")
    assert [row.standard for row in rows] == [2 * 2 * climbed.shape.batch * climbed.shape.heads * n * n for n in (1024, 2048)]
    assert 1.9 <= rows[1].tiled / rows[0].tiled <= 2.1
    assert memory(dataclasses.replace(climbed.shape, dtype="float32"), (1024,), "sm_90a") == []


def test_the_command(tmp_path):
    ran = CliRunner().invoke(app, ["ladder", "--seqlen", "64", "--head-dim", "16", "--heads", "1", "--out", str(tmp_path)])
    assert ran.exit_code == 0, ran.output
    assert "No kernel runs here" in ran.output
    for rung in RUNGS:
        assert rung.title in ran.output
    assert (tmp_path / "ladder.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "ladder.html").read_text().startswith("<!DOCTYPE html>")


def test_other_cards_lack_one_rung():
    """That of Hopper's asynchronous units; every other rung has a kernel there, at any head dim that a plan takes."""
    assert [rung.name for rung in RUNGS if rung.arch(by_name("sm_86")) is None] == ["fa3"]
    for rung in RUNGS:
        for arch in filter(None, (rung.arch(by_name(name)) for name in ("sm_80", "sm_86", "sm_90a", "sm_120"))):
            for head_dim in (16, 64, 128, 256):
                assert plan(rung.spec(head_dim, "bfloat16"), arch).skeleton != "interpreter"
