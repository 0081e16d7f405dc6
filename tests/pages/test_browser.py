"""Pages in a browser, where there is one: whatever the width, nothing is wider than the window, and no script or style fails."""

import dataclasses
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from flashgen.cli import bench_html
from flashgen.cli.explain import explain
from flashgen.cli.explain_html import html
from flashgen.ladder import page as ladder
from flashgen.ladder.climb import Climb, Measured, Shape
from flashgen.spec import Spec

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
MEASURE = "<script>document.title = [innerWidth, document.documentElement.scrollWidth].join(' of ')</script>"

pytestmark = pytest.mark.skipif(not BROWSER, reason="needs chromium")


@pytest.fixture(scope="module")
def pages():
    specs = {"plan": Spec(head_dim=128, dtype="bfloat16", mask="causal"), "backward": Spec(head_dim=64, dtype="float16", backward=True)}
    found = {name: html(explain(spec, "sm_90a", 1024, 4096)) for name, spec in specs.items()}
    found["bench"] = bench_html.html(json.loads((RESULTS / "NVIDIA_H100_80GB_HBM3.json").read_text()))
    climbed = json.loads((RESULTS / "ladder_NVIDIA_H200.json").read_text())
    shape = Shape(**{field.name: climbed[field.name] for field in dataclasses.fields(Shape)})
    names = [field.name for field in dataclasses.fields(Measured)]
    rows = tuple(Measured(**{name: row[name] for name in names}) for row in climbed["rows"])
    found["ladder"] = ladder.html(Climb(machine=climbed, on_gpu=True, shape=shape, rows=rows))
    return found


@pytest.mark.parametrize("width", [500, 1600])
@pytest.mark.parametrize("name", ["plan", "backward", "bench", "ladder"])
def test_nothing_is_wider_than_the_window(pages, tmp_path, name, width):
    path = tmp_path / "page.html"
    path.write_text(pages[name].replace("</body>", f"{MEASURE}</body>"), encoding="utf-8")
    options = ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", f"--window-size={width},900", "--dump-dom")
    ran = subprocess.run([BROWSER, *options, path.as_uri()], capture_output=True, text=True, check=True, timeout=120)
    found = re.search(r"<title>(\d+) of (\d+)</title>", ran.stdout)
    assert found
    assert int(found[2]) <= int(found[1]) <= width
