"""The values of a launch besides arrays, and the emitted `struct Params` as a NumPy record: the runtime and the emulator fill it in."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from flashgen.dtypes import float32, float32_fault
from flashgen.errors import CallError
from flashgen.expr import evaluate
from flashgen.expr.language.nodes import names
from flashgen.plan.geometry import Sizes, extent
from flashgen.plan.program import Argument, Program
from flashgen.plan.sections import sections
from flashgen.spec.words import count

STRIDES = np.dtype([(axis, "<i8") for axis in ("batch", "head", "row", "column")])
_SCALARS = {"float": np.dtype("<f4"), "int": np.dtype("<i4")}
_TENSOR_MAP, _TENSOR_MAP_ALIGNMENT = np.dtype((np.uint8, 128)), 64


def scalars(program: Program, sizes: Sizes, params: Mapping[str, int | float]) -> dict[str, int | float]:
    """The values of the scalar members of Params, by what each is `of`. `params`: those of the spec, by name, all of them."""
    arguments = {p.argument: params[p.name] for p in program.spec.params}
    return {**arguments, "softmax_scale": softmax_scale(program, params), **of_sizes(program, sizes)}


def of_sizes(program: Program, sizes: Sizes) -> dict[str, int]:
    """Those of them that follow from the sizes of a call."""
    return {
        "q_len": sizes.q_len,
        "kv_len": sizes.kv_len,
        "pages": sizes.pages,
        "heads": sizes.heads,
        "batch": sizes.batch,
        "group": sizes.group,
        "section": sections(program).heads(sizes),
        "shares": extent(program.shares, sizes),
        **{count(name): elements for name, elements in sizes.summed},
    }


def softmax_scale(program: Program, params: Mapping[str, int | float]) -> float:
    """The factor of q.k. Raises CallError for one that float32 does not hold."""
    scale = float(evaluate(program.expressions.scale, {p.name: params[p.name] for p in program.spec.params}))
    if fault := float32_fault(scale):
        given = ", ".join(f"{name} = {params[name]}" for name in sorted(names(program.expressions.scale)))
        raise CallError(f"scale, {program.spec.scale}, is {scale} where {given}: {fault}")
    return float32(scale)


def steps(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """The strides that a kernel is given of a tensor: 0 along an axis of extent 1, which so broadcasts, and 0 in one without elements, as
    no index is inside of that."""
    return tuple(0 if n == 1 or 0 in shape else stride for n, stride in zip(shape, strides, strict=True))


@lru_cache(256)
def record_dtype(arguments: tuple[Argument, ...]) -> np.dtype[Any]:
    """The C layout of Params: a field an argument, in order, padding included.

    >>> record_dtype((Argument("lse", "float*", "pointer", "lse"), Argument("q_len", "int", "scalar", "q_len"))).itemsize
    16
    """
    names, formats, offsets, end, alignment = [], [], [], 0, 1
    for argument in arguments:
        member, align = _member(argument)
        offset = -(-end // align) * align
        names.append(argument.name)
        formats.append(member)
        offsets.append(offset)
        end, alignment = offset + member.itemsize, max(alignment, align)
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": -(-end // alignment) * alignment})


def _member(argument: Argument) -> tuple[np.dtype[Any], int]:
    """Its layout and its alignment in bytes."""
    match argument.kind:
        case "tensor_map":
            return _TENSOR_MAP, _TENSOR_MAP_ALIGNMENT
        case "pointer":
            return np.dtype("<u8"), 8
        case "strides":
            return STRIDES, 8
        case "array" | "sums":
            return np.dtype([("data", "<u8"), ("strides", "<i8", (argument.rank,))]), 8
        case "scalar" | "extent":
            return _SCALARS[argument.cuda], 4
