"""Numbers of float32: what becomes of a double, why it may not, how it is written."""

import doctest

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from flashgen import dtypes


def test_examples() -> None:
    assert doctest.testmod(dtypes).failed == 0


@given(st.floats())
@example(3.4028235677973366e38)
@example(7e-46)
@example(7.1e-46)
def test_numbers_of_float32(x: float) -> None:
    with np.errstate(over="ignore"):
        rounded = np.float32(x)
    assert np.array_equal(dtypes.float32(x), rounded, equal_nan=True)
    assert (dtypes.float32_fault(x) == "") == (bool(np.isfinite(rounded)) and (rounded != 0 or x == 0))
    if np.isfinite(rounded):
        assert dtypes.float32(float(dtypes.float32_text(x))) == rounded
