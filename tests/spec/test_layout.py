"""Layouts: which axis is which, for any order of them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flashgen.spec.layout import LAYOUTS, AxisOrder

ORDERS = st.permutations("bshd").map("".join)


@given(ORDERS)
def test_transpositions(axes):
    order = AxisOrder("some", axes)
    x = np.zeros(order.arranged(b=2, s=3, h=5, d=7))
    assert x.transpose(order.to_rows_first).shape == (2, 3, 5, 7)
    assert x.transpose(order.to_heads_first).shape == (2, 5, 3, 7)
    assert np.zeros((2, 3, 5, 7)).transpose(order.from_rows_first).shape == x.shape
    assert np.zeros((2, 5, 3, 7)).transpose(order.from_heads_first).shape == x.shape
    assert [x.shape[order.axis(letter)] for letter in "bshd"] == [2, 3, 5, 7]


def test_a_layout_s_name_is_its_axes_and_columns_come_last():
    for name, order in LAYOUTS.items():
        assert order.name == name == (order.axes.replace("s", "t") if order.packed else order.axes)
        assert sorted(order.whole) == sorted("bshd")
        assert order.axes[-1] == "d"


def test_sequences_one_behind_the_other_are_one_to_who_computes():
    order, x = LAYOUTS["thd"], np.zeros((5, 2, 3))
    assert order.by_rows(x).shape == (1, 5, 2, 3)
    assert order.given(order.expanded(x).transpose(order.to_heads_first).transpose(order.from_heads_first)).shape == x.shape
