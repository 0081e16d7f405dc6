"""Outputs of a caller that are no place to write to, against NumPy's knowledge of its own arrays."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

import flashgen
from flashgen.errors import CallError
from flashgen.runtime import overlap
from flashgen.runtime.arrays import Layout, liken

AXES = st.lists(st.tuples(st.integers(0, 4), st.integers(-9, 9)), max_size=3)


def laid(axes: list[tuple[int, int]]) -> Layout:
    return Layout(tuple(n for n, _ in axes), tuple(stride for _, stride in axes), "float32", None, 0)


def places(layout: Layout, address: int = 0) -> list[int]:
    """The address of every element."""
    return [address + 4 * sum(i * s for i, s in zip(index, layout.strides, strict=True)) for index in np.ndindex(*layout.shape)]


@given(AXES)
def test_folded_arrays_are_found(axes: list[tuple[int, int]]) -> None:
    found = places(layout := laid(axes))
    if len(set(found)) < len(found):
        assert overlap.folded(layout)
    low, high = overlap.reach(layout)
    assert not found or (low, high) == (min(found), max(found) + 4)


@given(st.permutations(range(4)), st.lists(st.integers(1, 3), min_size=4, max_size=4), st.sampled_from([1, -1, 2]))
def test_views_of_arrays_in_order_are_not_folded(order: list[int], shape: list[int], step: int) -> None:
    x = np.zeros(shape, np.float32)[::step, ..., ::step].transpose(order)
    assert not overlap.folded(liken(x, "o").layout)


@given(AXES, AXES, st.integers(-30, 30))
def test_arrays_that_meet_are_found(axes: list[tuple[int, int]], others: list[tuple[int, int]], apart: int) -> None:
    one, other, at = laid(axes), laid(others), 1 << 40
    truth = bool(set(places(one, at)) & set(places(other, at + 4 * apart)))
    assert overlap.meet(one, at, other, at + 4 * apart) == truth


SPEC = {"dtype": "float32", "head_dim": 16, "outputs": ["o", "lse"]}


def draw() -> tuple[np.ndarray, ...]:
    packed = np.random.default_rng(0).standard_normal((1, 20, 4, 2, 16), np.float32)
    return tuple(packed[:, :, i] for i in range(4))


def read_only() -> np.ndarray:
    x = np.zeros((1, 20, 2, 16), np.float32)
    x.flags.writeable = False
    return x


LSE = np.zeros((1, 2, 20), np.float32)
BOTH = np.zeros((20, 2, 16), np.float32)


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ((read_only(), LSE), r"^out is read-only for o: expected an array that can be written to, as o\.copy\(\)"),
        ((np.broadcast_to(LSE[..., :1, :1, None], (1, 20, 2, 16)), LSE), "^out is read-only for o"),
        (
            (as_strided(BOTH, (1, 20, 2, 16), (0, 0, 64, 4)), LSE),
            "^out for o has shape .* some of its elements are one",
        ),
        ((BOTH[None], BOTH.reshape(-1)[:40].reshape(1, 2, 20)), "^out for lse shares memory with o: give an array of its own"),
    ],
)
def test_outputs_that_cannot_be_written_to_are_refused(out: tuple[np.ndarray, ...], message: str) -> None:
    q, k, v, _ = draw()
    with pytest.raises(CallError, match=message):
        flashgen.compile(SPEC, arch="host")(q, k, v, out=out)


def test_what_lies_between_what_is_read_may_be_written_to() -> None:
    q, k, v, o = draw()
    attn = flashgen.compile(SPEC, arch="host")
    expected, _ = attn(q, k, v)
    assert attn(q, k, v, out=(o, LSE))[0] is o
    np.testing.assert_array_equal(o, expected)
    for name, taken in (("q", q), ("k", k), ("v", v)):
        before = taken.copy()
        with pytest.raises(CallError, match=f"^out for o shares memory with {name}"):
            attn(q, k, v, out=(taken, LSE))
        np.testing.assert_array_equal(taken, before)
