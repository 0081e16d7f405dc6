"""`flashgen build`: what it writes, and that the header tells the truth."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import cuda.pathfinder
import pytest

from flashgen.cli.build import build, kernel_plan
from flashgen.plan.backward import plan_backward
from flashgen.plan.params import record_dtype
from flashgen.render import render
from flashgen.render.header import header
from flashgen.spec import Spec

SMALL = "name: small\ndtype: float16\nhead_dim: 64\nmask: causal\nblock: {m: 64, n: 64}\n"
VARIANTS = (
    Spec(head_dim=64, dtype="float16", mask="causal"),
    Spec(
        head_dim=64,
        dtype="float16",
        mask="kv_idx < lens[b] + extra",
        score="cap * tanh(s / cap) + bias[h, kv_idx]",
        params={"cap": 30.0, "extra": 3},
        tensors={"lens": {"shape": ["b"], "dtype": "int32"}, "bias": {"shape": ["hq", "kv_len"], "dtype": "float32"}},
        outputs=["o", "lse"],
    ),
)

BACKWARD = Spec(
    head_dim=64,
    dtype="float16",
    score="s + bias[h, kv_idx] * c",
    params={"c": {"default": 2.0, "grad": True}},
    tensors={"bias": {"shape": ["hq", "kv_len"], "dtype": "float32", "grad": True}},
    backward=True,
)


def test_writes_a_folder_an_architecture(flashgen, tmp_path):
    (tmp_path / "small.yaml").write_text(SMALL)
    ran = flashgen("build", tmp_path / "small.yaml", "--arch", "sm_90a", "--arch", "sm_80", "-o", tmp_path, "--json")
    assert ran.code == 0, ran.err
    built = json.loads(ran.out)
    assert [made["arch"] for made in built] == ["sm_90a", "sm_80"]
    for made in built:
        assert made.keys() == {"arch", "cubin", "registers", "spill_bytes", "shared_bytes", "seconds", "tuned", "part"}
        assert 0 < made["registers"] <= 255
        assert made["seconds"] > 0
        assert not made["tuned"]
        folder = tmp_path / "small" / made["arch"]
        assert Path(made["cubin"]) == folder / "kernel.cubin"
        assert (folder / "kernel.cubin").read_bytes()[:4] == b"\x7fELF"
        assert (folder / "kernel.cu").read_text().startswith("// flashgen")
        program = json.loads((folder / "plan.json").read_text())
        assert program["arch"] == made["arch"]
        assert max(kernel["smem"]["bytes"] for kernel in program["kernels"]) <= made["shared_bytes"]
        assert f"_FORWARD_THREADS {program['kernels'][0]['grid']['threads']}\n" in (folder / "kernel.h").read_text()


def test_a_backward_lies_beside_its_forward(flashgen, tmp_path):
    (tmp_path / "bent.yaml").write_text("dtype: float16\nhead_dim: 16\nbackward: true\n")
    ran = flashgen("build", tmp_path / "bent.yaml", "--arch", "sm_80", "-o", tmp_path, "--json")
    assert ran.code == 0, ran.err
    assert [made["part"] for made in json.loads(ran.out)] == ["kernel", "backward"]
    folder = tmp_path / "bent" / "sm_80"
    assert {path.name for path in folder.iterdir()} == {
        *(f"{part}.{kind}" for part in ("kernel", "backward") for kind in ("cu", "cubin", "h", "c")),
        "plan.json",
        "backward.json",
    }
    assert (folder / "backward.cubin").read_bytes()[:4] == b"\x7fELF"
    kernels = json.loads((folder / "backward.json").read_text())["kernels"]
    assert [kernel["entry"] for kernel in kernels] == ["delta", "backward", "finish_queries"]
    assert "#define bent_backward_sm_80_BACKWARD_THREADS" in (folder / "backward.h").read_text()


def test_a_backward_of_before_is_removed_and_nothing_else(flashgen, tmp_path):
    path, folder = tmp_path / "bent.yaml", tmp_path / "out" / "bent" / "sm_80"
    forward, both = (
        {f"{part}.{kind}" for part in parts for kind in ("cu", "cubin", "h", "c")} for parts in (("kernel",), ("kernel", "backward"))
    )
    for backward, found in (("backward: true\n", both | {"backward.json"}), ("", forward)):
        path.write_text(f"dtype: float16\nhead_dim: 16\n{backward}")
        assert flashgen("build", path, "--arch", "sm_80", "-o", tmp_path / "out").code == 0
        assert {file.name for file in folder.iterdir()} - {"notes.md"} == found | {"plan.json"}
        (folder / "notes.md").write_text("mine")
    (folder / "backward.c").write_text("mine")
    assert flashgen("build", path, "--arch", "sm_80", "-o", tmp_path / "out").code == 0
    assert {file.name for file in folder.iterdir()} == forward | {"plan.json", "notes.md", "backward.c"}


def test_the_table_names_the_folder(flashgen, tmp_path):
    (tmp_path / "small.yaml").write_text(SMALL)
    ran = flashgen("build", tmp_path / "small.yaml", "--arch", "sm_80", "-o", tmp_path / "out")
    assert (ran.code, ran.err) == (0, "")
    assert str(tmp_path / "out" / "small" / "sm_80") in ran.out


def test_nothing_is_written_when_one_architecture_cannot_be(flashgen, tmp_path):
    ran = flashgen("build", "causal", "--arch", "sm_80", "--arch", "sm_75", "-o", tmp_path)
    assert ran.code == 2
    assert "sm_75" in ran.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
@pytest.mark.parametrize("spec", [*VARIANTS, BACKWARD], ids=["plain", "arrays", "backward"])
def test_the_header_has_the_layout_of_the_params(spec, arch, tmp_path):
    """The C compiler places every member where the runtime writes it."""
    compiler = shutil.which("g++")
    if not compiler:
        pytest.skip("no g++")
    program = plan_backward(spec, arch) if spec.backward else kernel_plan(spec, arch)
    text = header(program, render(program))
    struct = re.search(r"struct (\w+_params)", text)[1]
    layout = record_dtype(program.arguments)
    checks = [f"static_assert(offsetof({struct}, {name}) == {offset});" for name, (_, offset) in layout.fields.items()]
    checks.append(f"static_assert(sizeof({struct}) >= {layout.itemsize});")  # more where cuda.h aligns a CUtensorMap to 128 bytes
    (tmp_path / "kernel.h").write_text(text)
    (tmp_path / "check.cpp").write_text("\n".join(['#include <cstddef>\n#include "kernel.h"', *checks]))
    include = cuda.pathfinder.find_nvidia_header_directory("cudart")
    subprocess.run([compiler, "-std=c++17", "-fsyntax-only", f"-I{include}", tmp_path / "check.cpp"], check=True)


def test_names_that_differ_in_case_make_different_names_in_c():
    headers = []
    for name in ("ab", "AB"):
        program = kernel_plan(Spec(head_dim=64, dtype="float16", name=name), "sm_80")
        headers.append(set(re.findall(r"\b\w*ab_sm_80\w*", header(program, render(program)), re.I)))
    assert len(headers[0]) == len(headers[1]) >= 6
    assert not headers[0] & headers[1]


def test_the_header_tells_the_memory_that_kernels_hand_to_each_other():
    program = kernel_plan(Spec(head_dim=64, dtype="float32"), "sm_80")
    text = header(program, render(program))
    size = 2 * program.attention.tile.block_n * 64
    assert f"memory of your own, float16 [batch, kv_heads, ceil(kv_len / {program.attention.tile.block_n}), {size}]: of k" in text
    assert "memory of your own, int32 [batch, heads" in text


def test_a_folder_that_cannot_be_written(flashgen, tmp_path):
    (tmp_path / "small.yaml").write_text(SMALL)
    (tmp_path / "file").write_text("")
    ran = flashgen("build", tmp_path / "small.yaml", "--arch", "sm_80", "-o", tmp_path / "file")
    assert ran.code == 2
    assert ran.err.startswith("flashgen: cannot write")


def test_specs_without_a_name_are_called_as_their_files(flashgen, tmp_path):
    for stem in ("one", "two.v2"):
        (tmp_path / f"{stem}.yaml").write_text(SMALL.removeprefix("name: small\n"))
        assert flashgen("build", tmp_path / f"{stem}.yaml", "--arch", "sm_80", "-o", tmp_path / "out").code == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["one", "two_v2"]


def test_the_kernel_of_another_spec_is_not_overwritten(flashgen, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for stem, mask in (("one", "causal"), ("two", "full")):
        Path(f"{stem}.yaml").write_text(SMALL.replace("causal", mask))
    build = ("--arch", "sm_80", "-o", "out")
    assert flashgen("build", "one.yaml", *build).code == 0
    before = Path("out/small/sm_80/kernel.cu").read_bytes()
    ran = flashgen("build", "two.yaml", *build)
    assert (ran.code, ran.out) == (2, "")
    assert "out/small/sm_80 holds the kernel of one.yaml, another spec: give this one another name:, or another --out" in ran.err
    assert Path("out/small/sm_80/kernel.cu").read_bytes() == before
    Path("one.yaml").write_text(SMALL.replace("causal", "window(5, 0)"))
    assert flashgen("build", tmp_path / "one.yaml", *build).code == 0  # the same, edited
    assert Path("out/small/sm_80/kernel.cu").read_bytes() != before
    Path("one.yaml").unlink()
    assert flashgen("build", "two.yaml", *build).code == 0  # of a spec that is gone


def test_the_interpreter_has_no_kernel(flashgen, tmp_path):
    ran = flashgen("build", "causal", "--arch", "host", "-o", tmp_path)
    assert (ran.code, ran.out) == (2, "")
    assert "give another --arch" in ran.err.lower()


def test_built_in_python(tmp_path):
    (made,) = build(VARIANTS[0], ["sm_90a"], tmp_path)
    assert made.spill_bytes == 0
