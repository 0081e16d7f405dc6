"""The other commands, and what bad input gets: exit code 2, one message, no traceback."""

import json
import subprocess
import sys

import pytest

from flashgen.emulate.build import compiler
from flashgen.runtime import device
from flashgen.spec import Spec, loads
from flashgen.spec.shipped import spec_root

GOOD = "dtype: float16\nhead_dim: 64\n"

BAD = {  # text, what the message has
    "unknown key": (GOOD + "maks: causal\n", ":3:1:", "mask"),
    "duplicate key": (GOOD + "dtype: float16\n", ":3:1:", "duplicate"),
    "tab": ("head_dim:\n\tqk: 3\n", ":2:", "tab"),
    "text for a number": ('dtype: float16\nhead_dim: "128"\n', ":2:", "128"),
    "unknown dtype": ("dtype: float12\nhead_dim: 64\n", ":1:8:", "float16"),
    "unknown name": (GOOD + "mask: causl\n", ":3:7:", "causal"),
    "not a mask": (GOOD + "mask: q_idx + 1\n", ":3:7:", ""),
    "attribute": (GOOD + "mask: q_idx.real > 0\n", ":3:", ""),
    "import": (GOOD + "mask: __import__('os')\n", ":3:", ""),
    "comprehension": (GOOD + "score: '[s for s in s]'\n", ":3:", ""),
    "deep": (GOOD + f"mask: {'(' * 10_000}causal{')' * 10_000}\n", ":3:", ""),
    "large": (GOOD + f"# {'x' * 10_000_000}\n", "", ""),
    "wrong number of indices": (GOOD + "mask: kv_idx < n[b, h]\ntensors: {n: {shape: [b], dtype: int32}}\n", ":3:", ""),
    "keyword": (GOOD + "params: {template: 1.0}\n", ":3:", "template"),
    "empty": ("", "", "empty"),
    "not utf-8": (b"\xff\xfe\x00dtype", "", ""),
    "head_dim 0": ("dtype: float16\nhead_dim: 0\n", "", "0"),
    "head_dim 7": ("dtype: float16\nhead_dim: 7\n", "", "nearest is 8"),
    "head_dim 1024": ("dtype: float16\nhead_dim: 1024\n", "", "nearest is 576"),
    "block": (GOOD + "block: {m: 100}\n", "", "100"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_specs(flashgen, tmp_path, case):
    text, place, hint = BAD[case]
    path = tmp_path / "bad.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    ran = flashgen("build", path, "-o", tmp_path / "out")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("flashgen: ")
    assert place in ran.err
    assert hint in ran.err
    assert len(ran.err) < 1500
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("given", ["causl", "no/such.yaml", ".", "specs/causl.yaml"])
def test_specs_that_are_not_there(flashgen, given):
    ran = flashgen("explain", given)
    assert (ran.code, ran.out) == (2, "")
    assert given.rpartition("/")[2] in ran.err


def test_a_message_is_all_that_a_shell_sees(tmp_path):
    (tmp_path / "bad.yaml").write_text("dtype: float16\nhead_dim: 64\nmask: causl\n")
    ran = subprocess.run([sys.executable, "-m", "flashgen", "show", tmp_path / "bad.yaml"], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.splitlines()[1:] == ["  3 | mask: causl", "    |       ^", "did you mean 'causal'?"]


def test_wrong_options_are_exit_code_2(flashgen):
    assert flashgen("show", "causal", "--stage", "nothing").code == 2
    assert flashgen("build", "causal").code == 2


@pytest.mark.parametrize("name", sorted(path.stem for path in spec_root().glob("*.yaml")))
def test_shipped_specs_by_name(flashgen, name):
    ran = flashgen("show", name, "--stage", "spec")
    assert ran.code == 0
    assert loads(ran.out) == loads((spec_root() / f"{name}.yaml").read_text())


@pytest.mark.parametrize(("stage", "word"), [
    ("expr", "return column < row.end"), ("source", "__global__"), ("ptx", ".visible .entry forward"), ("sass", "HGMMA"),
])  # fmt: skip
def test_stages(flashgen, stage, word):
    ran = flashgen("show", "causal", "--stage", stage)
    assert ran.code == 0, ran.err
    assert word in ran.out


def test_the_plan_is_json(flashgen):
    found = json.loads(flashgen("show", "mla", "--stage", "plan", "--arch", "sm_80").out)
    assert Spec(**found["spec"]).head_dim.qk == 192


def test_the_interpreter_has_a_plan_and_no_text(flashgen):
    assert flashgen("show", "causal", "--stage", "plan", "--arch", "host").code == 0
    assert "no kernel" in flashgen("show", "causal", "--stage", "source", "--arch", "host").err


def test_the_schema_is_one(flashgen):
    found = json.loads(flashgen("schema").out)
    assert set(found["required"]) == {"dtype", "head_dim"}


def test_doctor_says_what_is_missing(flashgen, monkeypatch):
    found = {finding["name"]: finding for finding in json.loads(flashgen("doctor", "--json").out)}
    assert found["NVRTC"]["works"]
    monkeypatch.setenv("CXX", "no-compiler")
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", "/proc/nowhere")
    compiler.cache_clear()
    found = {finding["name"]: finding for finding in json.loads(flashgen("doctor", "--json").out)}
    compiler.cache_clear()
    assert not found["C++ compiler"]["works"]
    assert "no-compiler" in found["C++ compiler"]["detail"]
    assert "FLASHGEN_CACHE_DIR" in found["cache"]["detail"]
    assert flashgen("doctor").code == 0


def test_the_cache_is_shown_and_cleared(flashgen, tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("FLASHGEN_CACHE_SIZE", "2M")
    for path in ("kernels/a-sm_90a-1/kernel.cubin", "emulate/kernel-1.so", "emulate/machine-1.o", "tuned/card/1.json"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(bytes(1 << 20))
    found = json.loads(flashgen("cache", "--json").out)
    assert found["limit"] == 2 << 20
    assert [(one["entries"], one["bytes"]) for one in found["folders"]] == [(1, 1 << 20), (2, 2 << 20), (0, 0)]
    assert "3.0 MiB of 2" in flashgen("cache").out
    assert [one["entries"] for one in json.loads(flashgen("cache", "--clear", "--json").out)["folders"]] == [0, 0, 0]
    assert [path.name for path in tmp_path.rglob("*.*")] == ["1.json"]


def test_doctor_says_who_may_write_to_the_cache(flashgen, tmp_path, monkeypatch):
    monkeypatch.setenv("FLASHGEN_CACHE_DIR", str(tmp_path / "cache"))
    (found,) = (one for one in json.loads(flashgen("doctor", "--json").out) if one["name"] == "cache")
    assert found["works"]
    assert "nobody else may write to it: 0 kernels" in found["detail"]
    (tmp_path / "cache").chmod(0o777)
    (found,) = (one for one in json.loads(flashgen("doctor", "--json").out) if one["name"] == "cache")
    assert not found["works"]
    assert f"other users may write to {tmp_path}/cache); set FLASHGEN_CACHE_DIR" in found["detail"]


WRONG = {  # what is given, what the one message has
    "a picture in no folder": (("explain", "causal", "--png", "{}/none/a.png"), "Name a place in a folder that is there"),
    "tiles in no folder": (("explain", "causal", "--tiles", "{}/none/a.npy"), "Name a place in a folder that is there"),
    "a page in no folder": (("explain", "causal", "--html", "{}/none/a.html"), "Name a place in a folder that is there"),
    "a build where a file is": (("build", "causal", "-o", "{}/some.txt"), "Name a place in a folder that is there"),
    "a tensor of none": (("explain", "causal", "--tensor", "ids=a.npy"), "no tensor is called 'ids'; there are none here"),
    "a tensor in no file": (("explain", "document", "--tensor", "ids={}/a.npy"), "No such file or directory. Write it with numpy.save"),
    "a tensor in a text": (("explain", "document", "--tensor", "ids={}/some.txt"), "it is no file of NumPy. Write it with numpy.save"),
    "kernels of the interpreter": (("check", "causal", "--emulate", "--arch", "host"), "Give another --arch"),
    "no CUDA file": (("emulate", "{}/no.cu", "--launch", "{}/some.txt"), "docs/emulator.md"),
    "a ladder without end": (("ladder", "--head-dim", "100000"), "256"),
}
NO_GPU = {"bench": "check and ladder run without one", "tune": "the planner's choice stands"}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_get_a_sentence_with_the_fix(flashgen, tmp_path, case):
    (tmp_path / "some.txt").write_text("x")
    given, fix = WRONG[case]
    ran = flashgen(*(word.replace("{}", str(tmp_path)) for word in given))
    assert (ran.code, ran.out) == (2, "")
    assert fix in ran.err


@pytest.mark.parametrize("command", NO_GPU)
def test_without_a_gpu_a_clock_says_what_else_there_is(flashgen, monkeypatch, command):
    monkeypatch.setattr(device, "missing", lambda: "no CUDA driver here: none")
    ran = flashgen(command, "causal")
    assert (ran.code, ran.out) == (2, "")
    assert "no CUDA driver here: none. " in ran.err
    assert NO_GPU[command] in ran.err
