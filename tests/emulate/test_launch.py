"""CUDA files by hand: the two examples run, faults in them are found, and what breaks a rule is named with its line."""

import re
from pathlib import Path

import pytest

from flashgen.emulate import EmulationFault
from flashgen.emulate.launch import load, run
from flashgen.emulate.seam import check
from flashgen.errors import CompileError, SpecError

EXAMPLES = Path(__file__).parents[2] / "examples" / "emulate"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.cu"))


@pytest.fixture
def changed(tmp_path):
    """An example with other words in its two files; their paths."""

    def changed(name, old="", new=""):
        for ending in ("cu", "toml"):
            text = (EXAMPLES / f"{name}.{ending}").read_text()
            (tmp_path / f"{name}.{ending}").write_text(text.replace(old, new))
        return tmp_path / f"{name}.cu", tmp_path / f"{name}.toml"

    return changed


@pytest.mark.parametrize("name", NAMES)
def test_examples_are_right(name):
    for seed in range(3):
        run(EXAMPLES / f"{name}.cu", load(EXAMPLES / f"{name}.toml"), seed)


@pytest.mark.parametrize(
    ("name", "old", "new", "found"),
    [
        ("tma_copy", "      if (i >= 2) tma_store_wait();", "", "race: (the TMA load of .* writes|the TMA store of warp 0 reads)"),
        ("tma_copy", "stage * TILE_BYTES, 64 * (i - 1)", "stage * TILE_BYTES, 64 * i", "y.*(never written|are off)"),
        ("wgmma_product", "  mbarrier_wait(full, 0);", "", "race: wgmma of warpgroup 0 reads"),
        ("wgmma_product", "k > 0);", "1 > 0 ? k > 1 : 0);", r"c: \d+ of 12288 elements are off.*\n.*where: .*rows"),
        ("wgmma_product", "operand(b + 32 * k)", "operand(b + 32 * (k ^ 1))", r"c: \d+ of 12288 elements are off"),
        ("wgmma_product", '"wgmma.fence.sync.aligned;" ::: "memory"', '"wgmma.fence.sync.aligned;"', 'without the "memory" clobber'),
    ],
)
def test_faults_are_found(changed, name, old, new, found):
    cuda, launch = changed(name, old, new)
    assert old in (EXAMPLES / f"{name}.cu").read_text()
    with pytest.raises(EmulationFault, match=found):
        run(cuda, load(launch), 0)


KERNEL = 'extern "C" __global__ void f(const __grid_constant__ Params p) {}\n'


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("#include <cuda_bf16.h>\n" + KERNEL, 1, "write: types and wrappers in the file"),
        (KERNEL.replace("{}", "{\n  __shared__ float x[32];\n}"), 2, "static shared memory.*write: extern __shared__"),
        (KERNEL.replace("const __grid_constant__ Params p", "float* x, int n"), 1, "one struct, by value; write: extern"),
        (KERNEL.replace('extern "C" ', ""), 1, "cannot find by name; write on one line: extern"),
        ("\nint main() { f<<<1, 32>>>(p); }\n" + KERNEL, 2, "host code.*write: the launch in the --launch file"),
        (
            KERNEL.replace("{}", '{\n  asm volatile("{ .reg .b16 x; bar.sync 0; }");\n}'),
            2,
            "a register of .b16 in an asm; write: an operand",
        ),
        (KERNEL.replace("{}", '{\n  asm volatile("bar.sync %[id];" :: [id] "r"(0));\n}'), 2, "by name; write: operands by number"),
    ],
)
def test_rules_of_the_file(text, line, said):
    with pytest.raises(CompileError) as caught:
        check(text, "a.cu")
    assert re.search(rf"a\.cu:{line}: .*{said}", str(caught.value)), str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("grid = 3", "grit = 3", r"toml:3:1: unknown word 'grit'\n(.*\n)*did you mean 'grid'"),
        ("block = 32", "", "block is missing; write: block = 128"),
        ('fill = "normal"', 'fill = "uniform"', "fill 'uniform' of array x\n(.*\n)*one of normal, integers, zeros, unset"),
        ('dtype = "bfloat16", fill = "normal"', 'dtype = "bf16", fill = "normal"', "takes a shape and a dtype of float16, bfloat16"),
        ('equals = "x"', 'equals = "x + 1"', "arrays and products of them"),
        ("tiles = 5", 'tiles = "five"', r"toml:14:1: parameter tiles is 'five'\n(.*\n)*write: n = 64"),
        ('tensor_map = "x"', 'tensor_map = "z"', "points to 'z', which is no array of this file"),
        ("grid = 3", "grid = = 3", r"toml:3:1: not TOML"),
    ],
)
def test_rules_of_the_launch_file(changed, old, new, said):
    _, launch = changed("tma_copy", old, new)
    with pytest.raises(SpecError, match=said):
        load(launch)


def test_a_kernel_of_another_name(changed):
    cuda, launch = changed("tma_copy", 'entry = "copy"', 'entry = "move"')
    with pytest.raises(SpecError, match=r"toml:2:\d+: tma_copy.cu has no kernel move"):
        run(cuda, load(launch), 0)
