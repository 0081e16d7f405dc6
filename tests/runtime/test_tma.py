"""Tensor maps: what they are asked to cover. The driver, which encodes them, is replaced by one that keeps what it is asked."""

import ctypes
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashgen.emulate import tensor_map
from flashgen.errors import BackendError
from flashgen.runtime import tma
from flashgen.runtime.arrays import Layout

driver = pytest.importorskip("cuda.bindings.driver", reason="needs the cuda13 or cuda12 extra")

PACKED = Layout((2, 100, 8, 128), (100 * 8 * 128, 8 * 128, 128, 1), "bfloat16", 0, 0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"offset": 2}, "the first element is 2 bytes off a multiple of 16"),
        ({"strides": (102400, 1024, 128, 2)}, "the last axis has stride 2, not 1"),
        ({"strides": (102400, 1028, 128, 1)}, "an axis has a stride of 2056 bytes, not a multiple of 16 below 2^40"),
        ({"strides": (2**40, 1024, 128, 1)}, "an axis has a stride of 2199023255552 bytes, not a multiple of 16 below 2^40"),
        ({"strides": (0, 1024, 128, 1)}, "an axis has stride 0"),
        ({"strides": (102400, -1024, 128, 1)}, "an axis has stride -1024"),
        ({}, None),
        ({"shape": (1, 100, 1, 128), "strides": (3, 1024, -5, 1)}, None),
        ({"shape": (2, 100, 8, 1), "strides": (102400, 1024, 128, 7)}, None),
    ],
)
def test_addressable_tells_why_not(change: dict[str, Any], reason: str | None) -> None:
    assert tma.addressable(PACKED._replace(**change)) == reason


@given(
    st.permutations(range(3)),
    st.lists(st.integers(1, 3), min_size=4, max_size=4),
    st.sampled_from((0, 0, 0, 8, 1)),
    st.sampled_from((1, 1, 2)),
)
def test_what_is_addressable_keeps_the_driver_s_rules(order: list[int], shape: list[int], skip: int, step: int) -> None:
    memory = np.zeros(4 * 4 * 4 * 32 + 64, np.float16)
    start = -(memory.ctypes.data // 2) % 8
    x = memory[start : start + 4 * 4 * 4 * 32].reshape(4, 4, 4, 32)[..., skip::step].transpose(*order, 3)[tuple(slice(n) for n in shape)]
    strides = tuple(s // 2 for s in x.strides)
    layout = Layout(x.shape, strides, "float16", 0, x.ctypes.data % 16)
    if tma.addressable(layout) is None:
        steps = tuple(s if n > 1 else tma.ALIGNMENT for n, s in zip(x.shape, x.strides, strict=True))  # as Map.lay has it
        legal = np.lib.stride_tricks.as_strided(x, x.shape, steps)
        tensor_map(legal.transpose(0, 2, 1, 3), (1, 1, 8, 8))  # raises where a rule of the driver is broken


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Records what the driver's library is given, through a C function pointer as its own."""
    calls: list[tuple[Any, ...]] = []

    def encode(place: int, kind: int, rank: int, pointer: int, *rest: Any) -> int:
        assert place % 64 == 0
        dims, strides, box, steps = (
            (ctypes.c_uint64 * 4).from_address(rest[0])[:],
            (ctypes.c_uint64 * 3).from_address(rest[1])[:],
            *((ctypes.c_uint32 * 4).from_address(at)[:] for at in rest[2:4]),
        )
        (ctypes.c_uint64 * 16).from_address(place)[:] = [pointer + i for i in range(16)]
        calls.append((driver.CUtensorMapDataType(kind).name, rank, pointer, dims, strides, box, steps, *rest[4:]))
        return 0

    pointer, number = ctypes.c_void_p, ctypes.c_int
    made = ctypes.CFUNCTYPE(number, pointer, number, ctypes.c_uint, *[pointer] * 5, *[number] * 4)(encode)
    untyped = ctypes.CFUNCTYPE(number)(ctypes.cast(made, pointer).value)  # takes anything, as a function of a library does
    monkeypatch.setattr(tma, "_encode_tiled", lambda: untyped)
    calls_of.append(made)
    return calls


calls_of: list[Any] = []  # kept: C holds no references


def test_a_map_of_queries(asked: list[tuple[Any, ...]]) -> None:
    record = tma.Map(PACKED, (64, 192))(0x1000)
    assert np.frombuffer(record, np.uint64).tolist() == [0x1000 + i for i in range(16)]
    (call,) = asked
    assert call[:7] == ("CU_TENSOR_MAP_DATA_TYPE_BFLOAT16", 4, 0x1000, [128, 100, 8, 2], [2048, 256, 204800], [64, 192, 1, 1], [1, 1, 1, 1])
    kinds = (driver.CUtensorMapInterleave, driver.CUtensorMapSwizzle, driver.CUtensorMapL2promotion, driver.CUtensorMapFloatOOBfill)
    assert [kind(n).name for kind, n in zip(kinds, call[7:], strict=True)] == [
        "CU_TENSOR_MAP_INTERLEAVE_NONE",
        "CU_TENSOR_MAP_SWIZZLE_128B",
        "CU_TENSOR_MAP_L2_PROMOTION_L2_128B",
        "CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE",
    ]


def test_addresses_beyond_32_bits(asked: list[tuple[Any, ...]]) -> None:
    tma.Map(PACKED, (64, 64))(0x7F12_3456_7890)
    assert asked[0][2] == 0x7F12_3456_7890


@pytest.mark.parametrize(("columns", "swizzle"), [(64, "128B"), (32, "64B"), (16, "32B")])
def test_the_swizzle_spans_a_box_row(columns: int, swizzle: str, asked: list[tuple[Any, ...]]) -> None:
    tma.Map(PACKED, (columns, 64))(0x1000)
    assert driver.CUtensorMapSwizzle(asked[0][8]).name == f"CU_TENSOR_MAP_SWIZZLE_{swizzle}"


def test_an_axis_of_one_gets_a_legal_stride(asked: list[tuple[Any, ...]]) -> None:
    tma.Map(Layout((1, 100, 1, 64), (3, 64, -5, 1), "float16", 0, 0), (64, 64))(0x1000)
    assert asked[0][4] == [128, 16, 16]


def test_an_array_of_no_row_gets_legal_sizes_and_strides(asked: list[tuple[Any, ...]]) -> None:
    tma.Map(Layout((4, 0, 2, 64), (0, 128, 64, 1), "float16", 0, 0), (64, 64))(0x1000)
    assert asked[0][3:5] == ([64, 1, 2, 4], [16, 128, 16])


def test_maps_are_kept_by_address(asked: list[tuple[Any, ...]]) -> None:
    at = tma.Map(PACKED, (64, 128))
    assert at(0x1000) == at(0x1000) != at(0x2000)
    assert [call[2] for call in asked] == [0x1000, 0x2000]


def test_an_array_of_another_length_has_another_map(asked: list[tuple[Any, ...]]) -> None:
    at = tma.Map(PACKED, (64, 128))
    at(0x1000)
    at.lay((2, 101, 8, 128), PACKED.strides)
    at(0x1000)
    at.lay((2, 102, 8, 128), (102 * 8 * 128, 8 * 128, 128, 1))
    at(0x1000)
    assert [(call[3][1], call[4][2]) for call in asked] == [(100, 204800), (101, 204800), (102, 208896)]


@pytest.mark.parametrize("group", [0, 4])
def test_a_map_is_as_one_made_anew_whatever_the_array_was_before(asked: list[tuple[Any, ...]], group: int) -> None:
    random = np.random.default_rng(0)
    again = tma.Map(Layout((1, 1, 1, 64), (0, 0, 0, 1), "bfloat16", 0, 0), (64, 128), group)
    for _ in range(200):
        shape = (*(int(n) for n in random.integers((1, 0, 1), 3)), 64)
        strides = (*(int(n) for n in 64 * random.integers(0, 3, 3)), 1)
        again.lay(shape, strides)
        again(0x1000)
        tma.Map(Layout(shape, strides, "bfloat16", 0, 0), (64, 128), group)(0x1000)
        assert asked[-2] == asked[-1]


def test_a_refusal_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tma, "_encode_tiled", lambda: lambda *_: int(driver.CUresult.CUDA_ERROR_INVALID_VALUE))
    with pytest.raises(BackendError, match="CUDA_ERROR_INVALID_VALUE"):
        tma.Map(PACKED, (64, 128))(0x1000)
