"""Pages in a browser, where there is one: whatever the width, nothing is wider than the window, and no script or style fails."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from flashgen.cli import bench_html
from flashgen.cli.explain import explain
from flashgen.cli.explain_html import html
from flashgen.spec import Spec

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "NVIDIA_H100_80GB_HBM3.json"
MEASURE = "<script>document.title = [innerWidth, document.documentElement.scrollWidth].join(' of ')</script>"

pytestmark = pytest.mark.skipif(not BROWSER, reason="needs chromium")


@pytest.fixture(scope="module")
def pages():
    specs = {"plan": Spec(head_dim=128, dtype="bfloat16", mask="causal"), "backward": Spec(head_dim=64, dtype="float16", backward=True)}
    found = {name: html(explain(spec, "sm_90a", 1024, 4096)) for name, spec in specs.items()}
    return {**found, "bench": bench_html.html(json.loads(RESULTS.read_text()))}


@pytest.mark.parametrize("width", [500, 1600])
@pytest.mark.parametrize("name", ["plan", "backward", "bench"])
def test_nothing_is_wider_than_the_window(pages, tmp_path, name, width):
    path = tmp_path / "page.html"
    path.write_text(pages[name].replace("</body>", f"{MEASURE}</body>"), encoding="utf-8")
    options = ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", f"--window-size={width},900", "--dump-dom")
    ran = subprocess.run([BROWSER, *options, path.as_uri()], capture_output=True, text=True, check=True, timeout=120)
    found = re.search(r"<title>(\d+) of (\d+)</title>", ran.stdout)
    assert found
    assert int(found[2]) <= int(found[1]) <= width
