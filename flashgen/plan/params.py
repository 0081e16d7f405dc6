"""The emitted `struct Params` as a NumPy record: what the runtime and the emulator fill in."""

import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from flashgen.plan.model import Argument

STRIDES = np.dtype([(axis, "<i8") for axis in ("batch", "head", "row", "column")])
_SCALARS = {"float": np.dtype("<f4"), "int": np.dtype("<i4")}
_TENSOR_MAP, _TENSOR_MAP_ALIGNMENT = np.dtype((np.uint8, 128)), 64


def record_dtype(arguments: Iterable[Argument]) -> np.dtype[Any]:
    """The C layout of Params: a field an argument, in order, padding included.

    >>> record_dtype([Argument("lse", "float*", "pointer", "lse"), Argument("q_len", "int", "scalar", "q_len")]).itemsize
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
        case "array":
            rank = re.fullmatch(r"Array<\w+, (\d+)>", argument.cuda)
            assert rank, argument.cuda
            return np.dtype([("data", "<u8"), ("strides", "<i8", (int(rank[1]),))]), 8
        case "scalar":
            return _SCALARS[argument.cuda], 4
