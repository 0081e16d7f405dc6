"""`flashgen.attention`: specs written from a call, compiled once for all like it, and what is refused."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flashgen
from flashgen import attend
from flashgen.arch import by_name
from flashgen.errors import CallError, SpecError
from flashgen.expr.meaning.reference import reference
from flashgen.expr.prove.lower import lower
from flashgen.expr.prove.rounding import rounding
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
    attend.compiled.cache_clear()
    for q_len, factor in ((5, 1e-3), (9, 2.0), (33, 3e6)):
        flashgen.attention(*qkv(q_len=q_len), score="factor * s", factor=factor)
    assert attend.compiled.cache_info().misses == 1


def test_values_that_a_form_rests_on_are_compiled_once_for_their_size() -> None:
    attend.compiled.cache_clear()
    for cap, misses in ((20.0, 1), (31, 2), (31.9, 2), (33.0, 3), (-33.0, 4), (-100.0, 4)):
        flashgen.attention(*qkv(), score="cap * silu(s / cap)", cap=cap)
        assert attend.compiled.cache_info().misses == misses


@given(st.one_of(st.floats(width=32), st.integers(-(2**31), 2**31 - 1)))
def test_a_default_is_near_the_value(value: float) -> None:
    """A form that is right for the one is for the other, up to a factor of 2; no value makes a spec that is refused."""
    default, type = attend._kind("c", value, True)
    Spec(head_dim=16, dtype="float32", score="s * c", params={"c": default})
    assert isinstance(value, int) == (type == "int")
    if value and 2.0**-127 <= abs(value) < 2.0**127 and not (type == "int" and abs(value) > 2**31 - 9):
        assert 0.5 <= value / default <= 2.01


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("value", [1e-30, 0.01, 1.0, 30.0, 50.0, 1e3, 1e30])
@pytest.mark.parametrize("score", ["c * tanh(s / c)", "c * tanh(s)", "s * silu(c * s)"])
def test_a_form_is_chosen_for_the_value(score: str, value: float, arch: str) -> None:
    """A call has the form that a spec with this default has, or one as right."""
    default, _ = attend._kind("c", value, True)
    near, own = (Spec(head_dim=64, dtype="float16", score=score, params={"c": c}) for c in (default, value))
    chosen, wanted = (rounding(lower(spec), spec, by_name(arch).tanh) for spec in (near, own))
    assert chosen is not None
    assert wanted is not None
    off = {"short": wanted.error, "fast": wanted.long, "library": 0.0}[chosen.way]
    assert off <= 2.1 * wanted.allowed or chosen.way == wanted.way


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": np.zeros((2, 33, 4, 16))}, r"q is float64: attention takes float16, bfloat16, float32\. Cast it, q\.astype\('float32'\)"),
        ({"k": np.zeros((2, 40, 2, 16), np.float64)}, r"k is float64, beside q float32: cast it, k\.astype\('float32'\)"),
        ({"v": np.zeros((40, 2, 16), np.float32)}, r"v has 3 axes, shape \[40, 2, 16\]: expected 4, \[B, S, H, D\]"),
        ({"q": [[1.0]]}, "q is a list, not an array"),
        ({"mask": np.ones((33, 40), bool)}, "mask is a ndarray: expected an expression as text, as 'causal'. An array is read by one"),
        ({"mask": None}, "mask is a NoneType: expected an expression as text"),
        ({"score": 1.0}, "score is a float: expected an expression as text, as 's'"),
        ({"layout": "BSHD"}, "layout is 'BSHD': did you mean 'bshd'"),
        ({"scale": np.ones(3)}, "scale is a ndarray: expected a number, or an expression of d and params"),
        ({"scale": True}, "^scale is True: expected a number"),
        ({"scale": 1e39}, "^scale is 1e.39: expected a finite number of float32"),
        ({"scale": 1e-50}, "^scale is 1e-50: it is 0 in float32"),
        (
            {"score": "s + c[kv_idx]", "c": np.ones(40, np.complex64)},
            "c is complex64: expressions read arrays of float32, int32, int64, bool, ",
        ),
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
    attend.compiled.cache_clear()
    q, k, v = qkv()
    expected = flashgen.attention(q, k, v, "window(left, 0)", score="cap * tanh(s / cap)", cap=3.0, left=4)
    got = flashgen.attention(q, k, v, "window(left, 0)", score="cap * tanh(s / cap)", cap=np.array(3.0, np.float32), left=np.array(4))
    np.testing.assert_array_equal(got, expected)
    assert attend.compiled.cache_info().misses == 1
    spec = {
        "head_dim": 16,
        "dtype": "float32",
        "mask": "window(left, 0)",
        "score": "cap * tanh(s / cap)",
        "params": {"cap": 1.0, "left": 1},
    }
    np.testing.assert_array_equal(flashgen.compile(spec)(q, k, v, cap=np.array(3.0), left=np.array(4)), expected)


@pytest.mark.parametrize("scale", [0.3, np.float32(0.3), np.array(0.3), -2, np.int64(3), 0, "0.3", "1/sqrt(d)"])
def test_scales(scale: Any) -> None:
    q, k, v = qkv()
    stated = scale if isinstance(scale, str) else float(scale)
    want = reference(Spec(head_dim=16, dtype="float32", mask="causal", scale=stated), q, k, v)[0]
    assert error(flashgen.attention(q, k, v, scale=scale), want) < 1e-5
    assert error(flashgen.compile({"head_dim": 16, "dtype": "float32", "mask": "causal", "scale": scale})(q, k, v), want) < 1e-5


def test_scales_of_a_sign_are_compiled_once() -> None:
    attend.compiled.cache_clear()
    attend._for.cache_clear()
    attend._made.cache_clear()
    for scale in (0.1, np.float32(0.2), 3.5):
        flashgen.attention(*qkv(), scale=scale)
    assert attend.compiled.cache_info().misses == 1
    q, k, v = qkv()
    both = flashgen.attention(q, k, v, score="given_scale * s", scale=0.5, given_scale=2.0)
    assert error(both, flashgen.attention(q, k, v, scale=1.0)) < 1e-5


RUNS = {"b": 2, "h": 4, "hk": 2, "q_idx": 7, "kv_idx": 9}


@settings(max_examples=30)
@given(st.lists(st.sampled_from(sorted(RUNS)), min_size=1, max_size=4), st.data())
def test_an_axis_has_the_extent_of_what_indexes_it_or_one(indices: list[str], data: st.DataObject) -> None:
    q, k, v = qkv(2, 7, 9, 4, 2)
    whole = [RUNS[index] for index in indices]
    shape = [data.draw(st.sampled_from([n, 1])) for n in whole]
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    score = f"s + x[{', '.join(indices)}]"
    got = flashgen.attention(q, k, v, "full", score=score, x=x)
    assert error(got, flashgen.attention(q, k, v, "full", score=score, x=np.broadcast_to(x, whole))) == 0
    axis = data.draw(st.integers(0, len(shape) - 1))
    shape[axis] = data.draw(st.integers(0, 20).filter(lambda n: n not in (1, whole[axis])))
    with pytest.raises(CallError, match=rf"x has shape .*: axis {axis} is indexed by {indices[axis]}, of which there are {whole[axis]}"):
        flashgen.attention(q, k, v, "full", score=score, x=np.zeros(shape, np.float32))


@pytest.mark.parametrize("shape", [(2, 7), (9, 2), (9,), (2, 9, 1)])
def test_documents_of_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises((CallError, SpecError), match="ids"):
        flashgen.attention(*qkv(2, 7, 9), "document(ids)", ids=np.zeros(shape, np.int32))


def test_equal_extents_are_told_apart_by_what_indexes_them() -> None:
    """2 sequences of 2 keys: the next call has more of one, and nothing is compiled again."""
    attend.compiled.cache_clear()
    attend._for.cache_clear()
    attend._made.cache_clear()
    for b, kv_len in ((2, 2), (2, 5), (3, 3)):
        flashgen.attention(*qkv(b, 4, kv_len), "ids[b, kv_idx] < 3", ids=np.zeros((b, kv_len), np.int32))
    assert attend.compiled.cache_info().misses == 1


def test_a_table_of_blocks_compiles_once_for_all_lengths() -> None:
    attend.compiled.cache_clear()
    attend._for.cache_clear()
    attend._made.cache_clear()
    for length in (28, 36, 44):
        blocks = length // 4
        seen = np.tri(blocks, dtype=bool)
        q, k, v = qkv(1, length, length)
        got = flashgen.attention(q, k, v, "seen[q_idx // 4, kv_idx // 4]", seen=seen)
        want = flashgen.attention(q, k, v, "kv_idx // 4 <= q_idx // 4")
        assert error(got, want) < 1e-5
    assert attend.compiled.cache_info().misses == 2


def test_a_constant_beyond_an_axis_is_refused() -> None:
    for at in (4, -1, 300):  # as many entries as heads
        with pytest.raises(SpecError, match=rf"table has 4 entries along this axis, and none at {at}"):
            flashgen.attention(*qkv(), score=f"s + table[{at}]", table=np.zeros(4, np.float32))
