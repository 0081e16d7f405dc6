"""`flashgen.attention`: specs written from a call, compiled once for all like it, and what is refused."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flashgen
from flashgen import attend
from flashgen.errors import CallError
from flashgen.expr import reference
from flashgen.spec import Spec
from tests.test_api import error, qkv


@settings(max_examples=30)
@given(
    st.sampled_from(["causal", "full", "causal & window(5, 0)"]),
    *(st.integers(1, 20) for _ in range(2)),
    st.sampled_from([(1, 1), (4, 2), (6, 2)]),
    st.sampled_from(["bshd", "bhsd"]),
    st.booleans(),
)
def test_attention_matches_the_reference(mask: str, q_len: int, kv_len: int, heads: tuple[int, int], layout: Any, lse: bool) -> None:
    q, k, v = qkv(1, q_len, kv_len, *heads)
    if layout == "bhsd":
        q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
    got = flashgen.attention(q, k, v, mask, layout=layout, lse=lse)
    expected = reference(Spec(head_dim=16, dtype="float32", mask=mask, layout=layout), q, k, v)
    assert error(got[0] if lse else got, expected[0]) < 1e-5
    if lse:
        seen = np.isfinite(expected[1])
        assert np.array_equal(np.isneginf(got[1]), ~seen)
        assert np.allclose(got[1][seen], expected[1][seen], atol=1e-5)


def test_attention_declares_what_it_is_given() -> None:
    q, k, v = qkv()
    slopes = np.linspace(0.1, 0.4, 4, dtype=np.float32)
    got = flashgen.attention(
        q, k, v, "causal & window(left, 0)", score="cap * tanh(s / cap) + slopes[h] * kv_idx", cap=3.0, left=9, slopes=slopes
    )
    spec = Spec(
        head_dim=16,
        dtype="float32",
        mask="causal & window(left, 0)",
        score="cap * tanh(s / cap) + slopes[h] * kv_idx",
        params={"cap": 1.0, "left": 1},
        tensors={"slopes": {"shape": ["hq"], "dtype": "float32"}},
    )
    assert error(got, reference(spec, q, k, v, cap=3.0, left=9, slopes=slopes)[0]) < 1e-5


def test_attention_compiles_once_for_all_lengths_and_values() -> None:
    attend._compiled.cache_clear()
    for q_len, cap in ((5, 1.0), (9, 2.0), (33, 3.0)):
        flashgen.attention(*qkv(q_len=q_len), score="cap * tanh(s / cap)", cap=cap)
    assert attend._compiled.cache_info().misses == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": np.zeros((2, 33, 4, 16))}, r"q is float64: attention takes float16, bfloat16, float32\. Cast it, q\.astype\('float32'\)"),
        ({"k": np.zeros((2, 40, 2, 16), np.float64)}, r"k is float64: the spec says float32\. Cast it, k\.astype\('float32'\)"),
        ({"v": np.zeros((40, 2, 16), np.float32)}, r"v has 3 axes, shape \[40, 2, 16\]: expected 4, \['B', 'S', 'H', 'D'\]"),
        ({"q": [[1.0]]}, "q is a list, not an array"),
        ({"out": np.zeros((1, 1, 1, 1), np.float32)}, r"o has shape \[1, 1, 1, 1\]: expected \[2, 33, 4, 16\]"),
        ({"out": (1, 2)}, "out holds 2 arrays: expected 1, o"),
        ({"out": 3}, "out is a int for o: expected a NumPy, CuPy or PyTorch array"),
    ],
)
def test_what_attention_refuses(change: dict[str, Any], message: str) -> None:
    arguments = dict(zip("qkv", qkv(), strict=True)) | change
    with pytest.raises(CallError, match=message):
        flashgen.attention(**arguments)


def test_arrays_without_axes_are_numbers() -> None:
    attend._compiled.cache_clear()
    q, k, v = qkv()
    expected = flashgen.attention(q, k, v, "window(left, 0)", score="cap * tanh(s / cap)", cap=3.0, left=4)
    got = flashgen.attention(q, k, v, "window(left, 0)", score="cap * tanh(s / cap)", cap=np.array(3.0, np.float32), left=np.array(4))
    np.testing.assert_array_equal(got, expected)
    assert attend._compiled.cache_info().misses == 1
    spec = {
        "head_dim": 16,
        "dtype": "float32",
        "mask": "window(left, 0)",
        "score": "cap * tanh(s / cap)",
        "params": {"cap": 1.0, "left": 1},
    }
    np.testing.assert_array_equal(flashgen.compile(spec)(q, k, v, cap=np.array(3.0), left=np.array(4)), expected)
