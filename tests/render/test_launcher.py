"""The launcher in C asks the driver for what a call in Python asks for: a stand-in for the driver keeps both."""

import ctypes
import math
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import cuda.pathfinder
import numpy as np
import pytest

from flashgen.plan import Program, plan
from flashgen.plan.backward import plan_backward
from flashgen.plan.geometry import Sizes, block_count
from flashgen.plan.params import record_dtype, scalars
from flashgen.render import render
from flashgen.render.header import ROLES, c_name, header
from flashgen.render.launcher import launcher
from flashgen.runtime import executable, tma
from flashgen.runtime.arrays import Layout, contiguous_strides
from flashgen.runtime.scratch import Scratch
from flashgen.spec import Spec, load
from flashgen.spec.words import count, gradient

EXAMPLE = Path(__file__).parents[2] / "examples" / "ship"
COUNTER, HALVES, SCRATCH, STREAM, MULTIPROCESSORS = 0x7000, 0x8000, 0x9000, 5, 132
BIAS: dict[str, Any] = {"score": "s + slopes[h] * reach", "tensors": {"slopes": {"shape": ["hq"], "dtype": "float32"}}}
SCALED: dict[str, Any] = {"output": "o * slopes[h]", "tensors": {"slopes": {"shape": ["hq"], "dtype": "float32"}}}
ASKED: dict[str, Any] = {
    "score": "c * s + t[h, kv_idx]",
    "params": {"c": {"default": 1.0, "grad": True}},
    "tensors": {"t": {"shape": ["hq", "kv_len"], "dtype": "float32", "grad": True}},
}
BLOCKS = {"m": 128, "n": 64, "lists": "lists"}
ROTARY = {"kind": "halves", "base": 10000.0}
PROGRAMS = {
    "tma": (Spec(head_dim=128, dtype="bfloat16", mask="causal", params={"reach": 3.0}, outputs=["o", "lse"], **BIAS), "sm_90a"),
    "pointers": (Spec(head_dim=64, dtype="float16", mask="causal", layout="bhsd"), "sm_80"),
    "float32": (Spec(head_dim=64, dtype="float32", mask="causal", outputs=["o", "max_logit"]), "sm_90a"),
    "shares": (Spec(head_dim=128, dtype="bfloat16", mask="causal", split=4), "sm_90a"),
    "cached": (Spec(head_dim=64, dtype="bfloat16", mask="causal", cache="contiguous"), "sm_90a"),
    "paged": (Spec(head_dim=64, dtype="bfloat16", mask="causal", layout="bhsd", cache={"page": 16}), "sm_90a"),
    "packed": (Spec(head_dim=64, dtype="float16", mask="causal", layout="thd"), "sm_90a"),
    "packed, paged": (Spec(head_dim=64, dtype="bfloat16", mask="causal", layout="thd", cache={"page": 16}), "sm_90a"),
    "packed, paged lists": (Spec(head_dim=64, dtype="float16", layout="thd", cache={"page": 16}, blocks=BLOCKS), "sm_90a"),
    "lists of a mask": (Spec(head_dim=64, dtype="float16", mask="kv_idx // 64 % 3 == q_idx // 64 % 3"), "sm_90a"),
    "lists": (Spec(head_dim=64, dtype="bfloat16", blocks={"m": 128, "n": 128, "lists": "lists"}), "sm_90a"),
    "turned": (Spec(head_dim=64, dtype="bfloat16", mask="causal", norm={}, rotary=ROTARY), "sm_90a"),
    "turned, packed": (Spec(head_dim=64, dtype="float16", layout="thd", rotary=ROTARY), "sm_80"),
    "clusters": (Spec(head_dim=256, dtype="bfloat16", backward=True), "sm_90a"),
    "backward": (Spec(head_dim=64, dtype="bfloat16", mask="causal", backward=True), "sm_90a"),
    "embedded backward": (Spec(head_dim=64, dtype="bfloat16", norm={}, rotary={"kind": "halves", "base": 10.0}, backward=True), "sm_90a"),
    "output": (Spec(head_dim=64, dtype="bfloat16", layout="bhsd", out_dtype="float32", outputs=["o", "o_raw"], **SCALED), "sm_90a"),
    "backward of output": (Spec(head_dim={"qk": 64, "v": 72}, dtype="bfloat16", layout="bhsd", backward=True, **SCALED), "sm_90a"),
    "backward of float32 o": (Spec(head_dim={"qk": 128, "v": 64}, dtype="float16", out_dtype="float32", backward=True), "sm_90a"),
    "exact sums": (Spec(head_dim=64, dtype="bfloat16", backward=True, deterministic=True, **ASKED), "sm_90a"),
    "packed backward": (Spec(head_dim=64, dtype="bfloat16", mask="causal", layout="thd", backward=True), "sm_90a"),
}
SIZES = [Sizes(2, 1000, 1500, 8, 2), Sizes(1, 1, 30000, 16, 2), Sizes(3, 40, 0, 4, 4), Sizes(5, 7000, 7000, 32, 32), Sizes(2, 0, 9, 4, 4)]


def planned(name: str) -> Program:
    spec, arch = PROGRAMS[name]
    return plan_backward(spec, arch) if spec.backward else plan(spec, arch)


def members(text: str, struct: str, types: dict[str, Any]) -> type[ctypes.Structure]:
    """A struct of the header as ctypes has it."""
    body = re.search(rf"struct {struct} \{{[^\n]*\n(.*?)\n\}};", text, re.S)
    assert body
    found = re.findall(r"^  (?:struct )?(\w+) (\w+);", body[1], re.M)
    return type("Call", (ctypes.Structure,), {"_fields_": [(member, types[kind]) for kind, member in found]})


@pytest.fixture(scope="module", params=PROGRAMS)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Program, Any, Any]:
    """A program, its launcher as a library with a stand-in for the driver, and the struct of a call."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        pytest.skip("no C compiler")
    program, folder = planned(request.param), tmp_path_factory.mktemp("launcher")
    source = render(program)
    text = header(program, source)
    (folder / "kernel.h").write_text(text)
    (folder / "kernel.c").write_text(launcher(program, source))
    include = cuda.pathfinder.find_nvidia_header_directory("cudart")
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-I{include}", "-o", str(folder / "launcher.so")]
    subprocess.run([compiler, *flags, folder / "kernel.c", Path(__file__).parent / "driver.c"], check=True)
    named = c_name(program, "kernel")
    types: dict[str, Any] = {"int": ctypes.c_int, "float": ctypes.c_float, "CUdeviceptr": ctypes.c_uint64}
    types |= {f"{named}_array": ctypes.c_int64 * 5} | {f"{named}_tensor_{rank}": ctypes.c_int64 * (1 + rank) for rank in (1, 2, 4)}
    library = ctypes.PyDLL(str(folder / "launcher.so"))
    return program, library, members(text, f"{named}_call", types)


def layouts(program: Program, sizes: Sizes) -> dict[str, Layout]:
    """Arrays of a call, contiguous, by the names of arguments."""
    spec, packed = program.spec, program.spec.geometry.packed
    found = {}
    for argument in program.arguments:
        role = argument.of
        if role in ROLES:
            of_keys, wide = role in ("k", "v", "dk", "dv"), role in ("q", "k", "dq", "dk")
            rows, heads = (sizes.kv_len, sizes.kv_heads) if of_keys else (sizes.q_len, sizes.heads)
            outer, rows = (sizes.pages, sizes.page) if of_keys and spec.page else (sizes.batch, rows)
            by_name = {"b": outer, "s": rows, "h": heads, "d": spec.head_dim.qk if wide else spec.head_dim.v}
            shape = spec.order_of(role).arranged(**by_name)
            found[role] = Layout(
                shape, contiguous_strides(shape), (spec.out_element if role in ("o", "o_raw", "do") else spec.element).name, 0, 0
            )
        elif argument.kind in ("pointer", "array", "sums") and role not in ("counter", "halves"):
            shape = (2, 3, 5, 7)[-argument.rank or -1 :]
            found[role] = Layout(shape, contiguous_strides(shape), "float32", 0, 0)
    assert packed == (len(found["q"].shape) == 3)
    return found


def given(call_type: Any, program: Program, sizes: Sizes, known: dict[str, Layout], addresses: dict[str, int]) -> ctypes.Structure:
    """The struct of a call."""
    lengths = {"batch": sizes.batch, "q_len": sizes.q_len, "kv_len": sizes.kv_len, "heads": sizes.heads, "kv_heads": sizes.kv_heads}
    lengths |= {"pages": sizes.pages} | {count(name): elements for name, elements in sizes.summed}
    values = lengths | {"scratch": SCRATCH, "softmax_scale": float(program.spec.head_dim.qk) ** -0.5} | addresses
    values |= {p.argument: p.default for p in program.spec.params}
    for role, name in ROLES.items():
        if role in known:
            batch, row, head, column = executable.rows_first(known[role], program.spec.layout_of(role)).strides
            values[name] = (ctypes.c_int64 * 5)(addresses[role], batch, head, row, column)
    for argument in program.arguments:
        if argument.kind in ("array", "sums"):
            values[argument.name] = (ctypes.c_int64 * (1 + argument.rank))(addresses[argument.of], *known[argument.of].strides)
        elif argument.kind == "extent":
            values[argument.name] = known[argument.of].shape[argument.rank]
    return call_type(**{name: values[name] for name, _ in call_type._fields_})


def launched(program: Program, library: Any, call: ctypes.Structure) -> list[list[str]]:
    """The words that the stand-in tells of a launch; of each kernel name, blocks and threads; shared bytes, stream; early; params."""
    ctypes.c_int.in_dll(library, "params_bytes").value = record_dtype(program.arguments).itemsize
    ctypes.c_int.in_dll(library, "multiprocessors").value = MULTIPROCESSORS
    told, named, kernels = (ctypes.c_char * 65536).in_dll(library, "told"), c_name(program, "kernel"), (ctypes.c_int64 * 16)()
    told.value = b""
    assert library[f"{named}_load"](kernels, ctypes.c_void_p(0x1234)) == 0
    raised = [line.split() for line in told.value.decode().splitlines()]
    assert [(name, int(bytes)) for name, _, bytes in raised] == [(kernel.entry, kernel.smem.bytes) for kernel in program.kernels]
    told.value = b""
    assert library[f"{named}_launch"](kernels, ctypes.byref(call), ctypes.c_void_p(STREAM)) == 0
    return [line.split() for line in told.value.decode().splitlines()]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_driver_is_asked_for_the_same(built: tuple[Program, Any, Any], sizes: Sizes, monkeypatch: pytest.MonkeyPatch) -> None:
    program, library, call_type = built
    sizes = replace(sizes, pages=9, page=program.spec.page) if program.spec.page else sizes
    monkeypatch.setattr(tma, "_encode_tiled", lambda: library.cuTensorMapEncodeTiled)
    known = layouts(program, sizes)
    sizes = replace(
        sizes, summed=tuple((name, math.prod(known[gradient(name)].shape)) for name in ASKED["tensors"] if gradient(name) in known)
    )
    scratch = Scratch.of(program, sizes)
    addresses = {name: 0x100 * (i + 1) for i, name in enumerate(known)}
    addresses |= dict(zip(scratch.arrays, scratch.at(SCRATCH), strict=True)) | {"counter": COUNTER, "halves": HALVES}
    call = given(call_type, program, sizes, known, addresses)
    size_of = library[f"{c_name(program, 'kernel')}_scratch_bytes"]
    size_of.restype = ctypes.c_size_t
    assert size_of(ctypes.byref(call)) == 4 * scratch.words
    told = launched(program, library, call)
    if not sizes.q_len:
        assert told == []
        return
    grids = [block_count(kernel, sizes, MULTIPROCESSORS) for kernel in program.kernels]
    expected = [(kernel, blocks) for kernel, blocks in zip(program.kernels, grids, strict=True) if blocks]
    assert [line[:2] for line in told[::4]] == [[kernel.entry, str(blocks)] for kernel, blocks in expected]
    assert [int(line[2]) for line in told[::4]] == [kernel.grid.threads for kernel, _ in expected]
    assert [line[2:] for line in told[1::4]] == [[str(kernel.smem.bytes), str(STREAM)] for kernel, _ in expected]
    assert [line[1] for line in told[2::4]] == [str(int(kernel.grid.early)) for kernel, _ in expected]
    record = in_python(program, sizes, known, addresses)
    for (line,) in told[3::4]:
        for argument, (kind, offset) in zip(program.arguments, (record.dtype.fields or {}).values(), strict=True):
            found = bytes.fromhex(line)[offset : offset + kind.itemsize]
            if sizes.kv_len or argument.of not in ("k", "v", "dk", "dv", "embedded_k", "embedded_dk"):  # nothing is read through those
                assert found == record[argument.name].tobytes(), argument
            elif argument.kind == "tensor_map":  # but the driver wants an address, extents and strides
                assert np.frombuffer(found, np.uint64)[:8].all(), argument


def in_python(program: Program, sizes: Sizes, known: dict[str, Layout], addresses: dict[str, int]) -> np.ndarray[Any, Any]:
    """The record that a call in Python fills in."""
    by_rows = {name: executable.rows_first(x, program.spec.layout_of(name)) if name in ROLES else x for name, x in known.items()}
    for name, (shape, dtype) in Scratch.of(program, sizes).arrays.items():
        by_rows[name] = Layout(shape, contiguous_strides(shape), dtype, 0, 0)
    if not sizes.kv_len:
        by_rows |= {"k": by_rows["q"], "v": by_rows["q"]}
    values = {p.name: p.default for p in program.spec.params}
    record, writes = executable.fill(program, by_rows, scalars(program, sizes, values))
    memory, names = bytearray(record.tobytes()), [*by_rows, "counter", "halves"]
    for write in writes:
        write.into(memoryview(memory), addresses[names[write.at]])
    return np.frombuffer(memory, record.dtype)[0]


def test_the_example_launches_once(tmp_path: Path) -> None:
    """The stand-in computes nothing, which the example finds out."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        pytest.skip("no C compiler")
    program = plan(load(EXAMPLE / "attention.yaml"), "sm_90a")
    source = render(program)
    (tmp_path / "kernel.h").write_text(header(program, source))
    (tmp_path / "kernel.c").write_text(launcher(program, source))
    files = [EXAMPLE / "attention.c", tmp_path / "kernel.c", Path(__file__).parent / "driver.c"]
    include = [f"-I{tmp_path}", f"-I{cuda.pathfinder.find_nvidia_header_directory('cudart')}"]
    subprocess.run([compiler, "-std=c11", "-Wall", "-Wextra", "-Werror", *include, *files, "-lm", "-o", tmp_path / "attend"], check=True)
    ran = subprocess.run([tmp_path / "attend", tmp_path / "kernel.c"], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (1, "")
    assert ran.stdout == "o of the last query is 0.0, of 199; the largest difference is 199.00\n"
