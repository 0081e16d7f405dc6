"""The NumPy record of Params has the offsets that a C++ compiler gives its members; what scalars a call is given."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from flashgen.plan import plan
from flashgen.plan.geometry import Sizes
from flashgen.plan.params import STRIDES, record_dtype, scalars
from flashgen.plan.program import Argument
from flashgen.spec import Spec

ARGUMENTS = (
    Argument("q", "TensorMap", "tensor_map", "q", (64, 128)),
    Argument("k", "TensorMap", "tensor_map", "k", (64, 128)),
    Argument("lse", "float*", "pointer", "lse"),
    Argument("softmax_scale", "float", "scalar", "softmax_scale"),
    Argument("rows", "Strides", "strides", "q"),
    Argument("arg_slopes", "Array<float, 1>", "array", "arg_slopes", rank=1),
    Argument("arg_bias", "Array<float, 3>", "array", "arg_bias", rank=3),
    Argument("q_len", "int", "scalar", "q_len"),
)

DECLARATIONS = """
#include <cstddef>
#include <cstdio>
struct alignas(64) TensorMap { unsigned char bytes[128]; };
struct Strides { long long batch, head, row, column; };
template <class T, int RANK> struct Array { const T* data; long long strides[RANK]; };
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("arguments", [ARGUMENTS, ARGUMENTS[2:], ARGUMENTS[3:4]])
def test_offsets_are_those_of_a_compiler(arguments: tuple[Argument, ...], tmp_path: Path) -> None:
    members = "\n".join(f"{a.cuda} {a.name};" for a in arguments)
    prints = "\n".join(f'printf("%zu ", offsetof(Params, {a.name}));' for a in arguments)
    text = f'{DECLARATIONS} struct Params {{ {members} }};\nint main() {{ {prints} printf("%zu", sizeof(Params)); }}'
    (tmp_path / "offsets.cpp").write_text(text)
    subprocess.run(["g++", "-std=c++17", "-Wno-invalid-offsetof", "offsets.cpp", "-o", "offsets"], cwd=tmp_path, check=True)
    *offsets, size = map(int, subprocess.run([tmp_path / "offsets"], capture_output=True, text=True, check=True).stdout.split())
    record = record_dtype(arguments)
    assert record.fields is not None
    assert [record.fields[a.name][1] for a in arguments] == offsets
    assert record.itemsize == size


def test_members_can_be_filled() -> None:
    record = np.zeros((), record_dtype(ARGUMENTS))
    record["rows"] = np.array((1, 2, 3, 4), STRIDES)
    record["arg_bias"]["strides"] = (5, 6, 7)
    record["softmax_scale"] = 0.125
    assert record["rows"]["row"] == 3
    assert record["arg_bias"]["strides"].tolist() == [5, 6, 7]


@pytest.mark.parametrize(
    ("head_dim", "length", "section"),
    [(64, 16384, 8), (128, 16384, 4), (128, 4096, 16), (256, 16384, 8), (256, 8192, 16), (256, 4096, 16), (256, 2048, 16), (64, 0, 16)],
)
def test_heads_of_a_section(head_dim: int, length: int, section: int) -> None:
    sizes = Sizes(batch=8, q_len=max(1, length), kv_len=length, heads=8, kv_heads=8)
    for mask, heads in (("causal", section), ("full", 1)):
        chosen = plan(Spec(head_dim=head_dim, dtype="bfloat16", mask=mask), "sm_90a")
        assert scalars(chosen, sizes, {})["section"] == heads
