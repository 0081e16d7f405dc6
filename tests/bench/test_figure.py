"""Pictures without matplotlib, and those that are kept."""

import json
from pathlib import Path

import pytest
from PIL import Image

from flashgen.bench import figure
from flashgen.bench.results import save_plot
from flashgen.errors import BackendError

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(figure, "can_draw", lambda: False)
    rows = [{"head_dim": 64, "causal": True, "dtype": "float16", "implementation": "flashgen", "seqlen": 512, "tflops": 1.0}]
    with pytest.raises(BackendError, match=r"pip install 'flashgen\[plots\]'"):
        save_plot({"gpu": "a card", "rows": rows}, tmp_path / "x.png")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.png")), ids=lambda path: path.name)
def test_pictures_that_are_kept_can_be_opened(path):
    with Image.open(path) as picture:
        picture.load()
        assert min(picture.size) > 300
        assert len(set(picture.convert("L").resize((64, 64)).tobytes())) > 5  # something is drawn


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.name)
def test_numbers_that_are_kept_say_where_they_are_from(path):
    found = json.loads(path.read_text())
    assert {"gpu", "driver", "versions", "commit"} <= (found if "gpu" in found else found["machine"]).keys()
    assert found["rows"]
