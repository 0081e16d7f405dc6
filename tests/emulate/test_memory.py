"""Fenced arrays keep their strides and their alignment."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flashgen.emulate.memory import LARGE, LARGE_PAGE, fence, fenced


@given(shape=st.lists(st.integers(1, 9), min_size=1, max_size=4), first=st.integers(0, 20), data=st.data())
def test_fence(shape, first, data):
    memory = np.random.default_rng(0).integers(0, 1 << 16, first + int(np.prod(shape))).astype(np.uint16)
    x = memory[first:].reshape(shape).transpose(data.draw(st.permutations(range(len(shape)))))
    copy = fence(x)
    assert (copy == x).all()
    assert copy.strides == x.strides
    assert copy.ctypes.data % 16 == x.ctypes.data % 16
    end = np.lib.array_utils.byte_bounds(copy)[1]
    assert -end % 4096 < 16


@given(nbytes=st.one_of(st.integers(0, 9000), *(st.integers(n - 40, n + 40) for n in (LARGE, LARGE_PAGE))))
def test_fenced_memory_is_zero_and_ends_with_a_page(nbytes):
    memory = fenced(nbytes)
    assert memory.size == nbytes
    assert not memory.any()
    end = memory.ctypes.data + nbytes
    assert -end % 4096 < 16
    assert nbytes < LARGE or -end % LARGE_PAGE < 16
