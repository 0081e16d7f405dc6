"""Tensor maps: what they are asked to cover. The driver, which encodes them, is replaced by one that keeps what it is asked."""

from types import SimpleNamespace
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
        legal = np.lib.stride_tricks.as_strided(x, x.shape, tma._strides(layout))
        tensor_map(legal.transpose(0, 2, 1, 3), (1, 1, 8, 8))  # raises where a rule of the driver is broken


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    calls: list[tuple[Any, ...]] = []

    def encode(kind: Any, rank: int, pointer: int, *arguments: Any) -> tuple[Any, Any]:
        lists = [[int(x) for x in argument] for argument in arguments[:4]]
        calls.append((kind.name, rank, pointer, *lists, *(a.name for a in arguments[4:])))
        return 0, SimpleNamespace(opaque=[driver.cuuint64_t(pointer + i) for i in range(16)])

    monkeypatch.setattr(driver, "cuTensorMapEncodeTiled", encode)
    tma.encoder.cache_clear()
    return calls


def test_a_map_of_queries(asked: list[tuple[Any, ...]]) -> None:
    record = tma.encoder(PACKED, (64, 192))(0x1000)
    assert np.frombuffer(record, np.uint64).tolist() == [0x1000 + i for i in range(16)]
    (call,) = asked
    assert call[:7] == ("CU_TENSOR_MAP_DATA_TYPE_BFLOAT16", 4, 0x1000, [128, 100, 8, 2], [2048, 256, 204800], [64, 192, 1, 1], [1, 1, 1, 1])
    assert call[7:] == (
        "CU_TENSOR_MAP_INTERLEAVE_NONE",
        "CU_TENSOR_MAP_SWIZZLE_128B",
        "CU_TENSOR_MAP_L2_PROMOTION_L2_128B",
        "CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE",
    )


@pytest.mark.parametrize(("columns", "swizzle"), [(64, "128B"), (32, "64B"), (16, "32B")])
def test_the_swizzle_spans_a_box_row(columns: int, swizzle: str, asked: list[tuple[Any, ...]]) -> None:
    tma.encoder(PACKED, (columns, 64))(0x1000)
    assert asked[0][8] == f"CU_TENSOR_MAP_SWIZZLE_{swizzle}"


def test_an_axis_of_one_gets_a_legal_stride(asked: list[tuple[Any, ...]]) -> None:
    tma.encoder(Layout((1, 100, 1, 64), (3, 64, -5, 1), "float16", 0, 0), (64, 64))(0x1000)
    assert asked[0][4] == [128, 16, 16]


def test_maps_are_kept_by_address(asked: list[tuple[Any, ...]]) -> None:
    at = tma.encoder(PACKED, (64, 128))
    assert at(0x1000) == at(0x1000) != at(0x2000)
    assert [call[2] for call in asked] == [0x1000, 0x2000]


def test_a_refusal_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "cuTensorMapEncodeTiled", lambda *_: (driver.CUresult.CUDA_ERROR_INVALID_VALUE, None))
    tma.encoder.cache_clear()
    with pytest.raises(BackendError, match="CUDA_ERROR_INVALID_VALUE"):
        tma.encoder(PACKED, (64, 128))(0x1000)
