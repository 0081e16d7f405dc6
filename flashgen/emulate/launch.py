"""Runs a CUDA file that somebody wrote by hand, as a file in TOML says: grid, members of the parameter, arrays, what comes out."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashgen import arch as arches
from flashgen.dtypes import DTYPES, by_name
from flashgen.emulate import seam
from flashgen.emulate.lint import findings
from flashgen.emulate.machine import HostKernel
from flashgen.emulate.memory import Watched, fence
from flashgen.emulate.numbers import differences
from flashgen.emulate.report import EmulationFault
from flashgen.emulate.run import POISON
from flashgen.emulate.tensor_map import tensor_map
from flashgen.errors import Position, SpecError, did_you_mean

Array = NDArray[Any]
FILLS = ("normal", "integers", "zeros", "unset")
PRODUCT = re.compile(r"\w+(?:\.T)?(?: @ \w+(?:\.T)?)*")
ARRAY = {"shape", "dtype", "fill", "written", "equals", "within"}
MEMBERS = ("pointer", "tensor_map", "int", "i64", "float")
SMALL = 4  # integers are drawn from -SMALL to SMALL, so that products are exact


@dataclass(frozen=True)
class LaunchFile:
    """A launch as its file says it. Member names of `params` are those of the kernel's struct, in its order."""

    path: Path
    entry: str
    grid: tuple[int, ...]
    block: int
    shared_bytes: int = 0
    cluster: int = 1
    arch: str = arches.DEFAULT
    strict: bool = False
    arrays: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)


def load(path: Path) -> LaunchFile:
    """Reads a launch file. Raises SpecError with the line, what is allowed there, and what to write."""
    text = path.read_text(encoding="utf-8")
    try:
        given = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"line (\d+)", str(error))
        raise SpecError(f"not TOML: {error}", _position(path, text, int(line[1]) if line else 1)) from None
    known = [name for name in LaunchFile.__dataclass_fields__ if name != "path"]
    for name in given:
        if name not in known:
            raise SpecError(f"unknown word {name!r}", _find(path, text, name), did_you_mean(name, known))
    for name, example in (("entry", '"copy"'), ("grid", "4"), ("block", "128")):
        if name not in given:
            raise SpecError(f"{path}: {name} is missing; write: {name} = {example}")
    for name, array in given.get("arrays", {}).items():
        _check_array(path, text, name, array)
    for name, member in given.get("params", {}).items():
        _check_member(path, text, name, member, given.get("arrays", {}))
    grid = given.pop("grid")
    return LaunchFile(path=path, grid=tuple(grid) if isinstance(grid, list) else (grid,), **given)


def _check_array(path: Path, text: str, name: str, array: Mapping[str, Any]) -> None:
    for word in array:
        if word not in ARRAY:
            raise SpecError(f"unknown word {word!r} of array {name}", _find(path, text, word), did_you_mean(word, sorted(ARRAY)))
    if not isinstance(array.get("shape"), list) or array.get("dtype") not in DTYPES:
        message = f"array {name} takes a shape and a dtype of {', '.join(DTYPES)}"
        raise SpecError(message, _find(path, text, name), f'write: {name} = {{shape = [64, 64], dtype = "bfloat16", fill = "normal"}}')
    fill = array.get("fill", "normal")
    if fill not in FILLS and not str(fill).endswith(".npy"):
        raise SpecError(
            f"fill {fill!r} of array {name}", _find(path, text, name), f"one of {', '.join(FILLS)}, or the path of an .npy file"
        )
    if "equals" in array and not PRODUCT.fullmatch(array["equals"]):
        raise SpecError(
            f"equals {array['equals']!r} of array {name}", _find(path, text, name), 'arrays and products of them: "x", "a @ b.T"'
        )


def _check_member(path: Path, text: str, name: str, member: Any, arrays: Mapping[str, Any]) -> None:
    if isinstance(member, int | float):
        return
    kind = next((word for word in MEMBERS if isinstance(member, dict) and word in member), None)
    if not kind:
        hint = (
            'write: n = 64, scale = 0.5, x = {pointer = "x"}, map = {tensor_map = "x", box = [64, 64], swizzle = 128}, stride = {i64 = 64}'
        )
        raise SpecError(f"parameter {name} is {member!r}", _find(path, text, name), hint)
    if kind in ("pointer", "tensor_map") and member[kind] not in arrays:
        message = f"parameter {name} points to {member[kind]!r}, which is no array of this file"
        raise SpecError(message, _find(path, text, name), did_you_mean(str(member[kind]), list(arrays)))


def _find(path: Path, text: str, word: str) -> Position:
    """The first line that says a word."""
    found = re.search(rf"\b{re.escape(word)}\b", text)
    line = text.count("\n", 0, found.start()) + 1 if found else 1
    return _position(path, text, line, found.start() - text.rfind("\n", 0, found.start()) if found else 1)


def _position(path: Path, text: str, line: int, column: int = 1) -> Position:
    return Position(str(path), line, column, [*text.splitlines(), ""][line - 1])


def run(cuda: Path, launch: LaunchFile, seed: int) -> dict[str, Array]:
    """Runs the kernel under a seed: its arrays by name. Raises EmulationFault, CompileError, MissingTwin, SpecError, BackendError."""
    text = cuda.read_text(encoding="utf-8")
    seam.check(text, cuda.name)
    if f" {launch.entry}(" not in text:
        position = _find(launch.path, launch.path.read_text(encoding="utf-8"), launch.entry)
        raise SpecError(f"{cuda.name} has no kernel {launch.entry}", position, 'the name of an extern "C" __global__ function')
    for finding in findings(text):
        raise EmulationFault(f"{cuda.name}:{finding.line}: {finding.what}", line=finding.line)
    random = np.random.default_rng(0)
    arrays = {name: fence(drawn(array, random, launch.path.parent)) for name, array in launch.arrays.items()}
    watched = {name: Watched(x, use(launch.arrays[name])) for name, x in arrays.items()}
    HostKernel(text, launch.entry, cuda.name).launch(
        *(launch.grid, launch.block, launch.shared_bytes, record(launch.params, arrays), seed, "strict" if launch.strict else True),
        arrays=watched,
        arch=arches.by_name(launch.arch),
        cluster=launch.cluster,
    )
    judge(launch, arrays)
    return arrays


def use(array: Mapping[str, Any]) -> Any:
    """The word for how a kernel uses an array of a launch file: `fill`, `update` or `constant`."""
    if array.get("fill") == "unset":
        return "fill"
    return "update" if array.get("written") or "equals" in array else "constant"


def drawn(array: Mapping[str, Any], random: np.random.Generator, folder: Path) -> Array:
    """An array as its entry says, always the same."""
    dtype, shape, fill = by_name(array["dtype"]).numpy, tuple(array["shape"]), array.get("fill", "normal")
    if fill.endswith(".npy"):
        loaded: Array = np.load(folder / fill).astype(dtype).reshape(shape)
        return loaded
    if fill == "unset":
        bytes_of = np.zeros(shape, dtype)
        if poison := POISON.get(dtype.itemsize):
            bytes_of.view(poison.dtype)[...] = poison
        return bytes_of
    if fill == "zeros":
        return np.zeros(shape, dtype)
    return (random.integers(-SMALL, SMALL + 1, shape) if fill == "integers" else random.standard_normal(shape)).astype(dtype)


def record(params: Mapping[str, Any], arrays: Mapping[str, Array]) -> Array:
    """The bytes of the kernel's struct: each member at a multiple of its size, a tensor map at one of 64."""
    data, alignment = bytearray(), 1
    for member in params.values():
        one, align = member_bytes(member, arrays)
        data += bytes(-len(data) % align) + one
        alignment = max(alignment, align)
    return np.frombuffer(bytes(data) + bytes(-len(data) % alignment), np.uint8).copy()


def member_bytes(member: Any, arrays: Mapping[str, Array]) -> tuple[bytes, int]:
    """A member of the kernel's struct as bytes, and its alignment."""
    if isinstance(member, bool | int):
        return np.int32(member).tobytes(), 4
    if isinstance(member, float):
        return np.float32(member).tobytes(), 4
    if "tensor_map" in member:
        return tensor_map(arrays[member["tensor_map"]], tuple(member["box"]), member.get("swizzle", 128)).tobytes(), 64
    if "pointer" in member:
        return np.uint64(arrays[member["pointer"]].ctypes.data).tobytes(), 8
    kind, value = next(iter(member.items()))
    made = np.array(value, {"int": np.int32, "i64": np.int64, "float": np.float32}[kind])
    return made.tobytes(), made.itemsize


def judge(launch: LaunchFile, arrays: Mapping[str, Array]) -> None:
    """Raises EmulationFault where an array is not written, or not what it should equal."""
    for name, said in launch.arrays.items():
        x = arrays[name]
        poison = POISON.get(x.itemsize) if said.get("fill") == "unset" else None
        if poison and len(missing := np.argwhere(x.view(poison.dtype) == poison)):
            raise EmulationFault(f"{len(missing)} of {x.size} elements of {name} were never written, the first at {missing[0].tolist()}")
        if "equals" in said:
            want = expected(said["equals"], arrays)
            axes = tuple(f"index of axis {i}" for i in range(x.ndim)) if x.ndim != 2 else ("row", "column")
            if wrong := differences(name, x, (want, want), float(said.get("within", 0.0)), axes=axes):
                raise EmulationFault(wrong)


def expected(formula: str, arrays: Mapping[str, Array]) -> Array:
    """A product of arrays in float64, as "a @ b.T"."""
    found: Array | None = None
    for factor in formula.split(" @ "):
        name, _, transposed = factor.partition(".")
        x = arrays[name].astype(np.float64)
        x = x.T if transposed else x
        found = x if found is None else found @ x
    assert found is not None
    return found
