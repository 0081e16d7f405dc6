"""Masks that are combined of others, as transformers does it: a tuple of functions, tensors made beside an index, moves to a device."""

import numpy as np
import pytest

from flashgen.errors import SpecError
from flashgen.tracing import trace
from flashgen.tracing.symbol import symbol

IDS = np.array([[0, 0, 1]], np.int32)


def all_of(*functions):
    def combined(b, h, q_idx, kv_idx):
        result = q_idx.new_ones((), dtype=np.bool_)
        for function in functions:
            result = result & function(b, h, q_idx, kv_idx).to(result.device)
        return result

    return combined


def causal(_b, _h, q_idx, kv_idx):
    return kv_idx <= q_idx


def one_document(ids):
    return lambda b, _h, q_idx, kv_idx: ids[b, kv_idx] == ids[b, q_idx]


def test_functions_in_a_tuple_are_traced():
    found = trace(all_of(causal, one_document(IDS)))
    assert found.mask == "True & (kv_idx <= q_idx) & (ids[b, kv_idx] == ids[b, q_idx])"
    assert found.values["ids"] is IDS


def test_a_symbol_may_be_captured():
    position = symbol("q_idx + kv_len - q_len")
    assert trace(lambda b, h, _q, kv_idx: causal(b, h, position, kv_idx)).mask == "kv_idx <= q_idx + kv_len - q_len"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda _b, _h, q_idx, _k: q_idx.new_zeros((3,)) == 0, r"\[3\] is the shape of an array"),
        (lambda _b, _h, q_idx, _k: q_idx.to(np.dtype("bool")), "is not cast"),
    ],
)
def test_what_no_number_does_is_refused(function, message):
    with pytest.raises(SpecError, match=message):
        trace(function)
