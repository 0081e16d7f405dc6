"""`flashgen emulate`: what runs, what is found, what is refused."""

import json
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "emulate" / "wgmma_product"
CUDA, LAUNCH = EXAMPLE.with_suffix(".cu"), EXAMPLE.with_suffix(".toml")


def test_a_right_kernel_is_exit_code_0(flashgen):
    ran = flashgen("emulate", CUDA, "--launch", LAUNCH, "--seeds", 2)
    assert ran.code == 0, ran.out + ran.err
    assert "multiply: 3 blocks of 128 threads, under 2 seeds" in ran.out
    assert "no fault found; c = a @ b.T" in ran.out


def test_a_fault_is_exit_code_1(flashgen, tmp_path):
    wrong = tmp_path / "wrong.cu"
    wrong.write_text(CUDA.read_text().replace("  wgmma_fence();\n", ""))
    ran = flashgen("emulate", wrong, "--launch", LAUNCH)
    assert ran.code == 1
    assert "wgmma with no wgmma.fence" in ran.out
    assert "--> wrong.cu:" in ran.out
    report = json.loads(flashgen("emulate", wrong, "--launch", LAUNCH, "--json").out)
    assert report["kernel"] == "multiply"
    assert report["runs"][-1]["line"] > 0


def test_what_cannot_run_is_refused(flashgen, tmp_path):
    included = tmp_path / "included.cu"
    included.write_text("#include <cuda.h>\n" + CUDA.read_text())
    for cuda, said in ((included, "included.cu:1: an #include"), (tmp_path / "none.cu", "no file")):
        ran = flashgen("emulate", cuda, "--launch", LAUNCH)
        assert ran.code
        assert said in ran.err
