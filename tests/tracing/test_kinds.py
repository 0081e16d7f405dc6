"""Objects that are called, and functions of JAX, as functions read them: what runs is what is traced."""

import math
import types

import numpy as np
import pytest

from flashgen.errors import SpecError
from flashgen.tracing import trace
from flashgen.tracing.modules import of_jax


class Negated:
    """An object whose `forward` is a part of its own."""

    def forward(self, q, k):
        return q < k

    def __call__(self, b, h, q, k):  # noqa: ARG002
        return ~self.forward(q, k)


IDS = np.zeros((2, 9), np.int32)


def document(b, i, ids=IDS):
    return ids[b, i]


def same(b, h, q, k, of=document):  # noqa: ARG001
    return of(b, q) == of(b, k)


def test_a_default_may_be_a_function():
    found = trace(same)
    assert found.mask == "ids[b, q_idx] == ids[b, kv_idx]"
    assert found.values["ids"] is IDS


def of(module, name):
    """A function that JAX has, by its name: what it computes of numbers is not asked for."""
    function = types.FunctionType((lambda *args, **options: (args, options)).__code__, {}, name)
    function.__module__ = module
    assert of_jax(function)
    return function


def worth(score, s):
    return eval(score, {"s": s, "tanh": math.tanh, "gelu": lambda x: 0.5 * x * math.erfc(-x / math.sqrt(2))})


def test_what_an_object_runs_where_it_is_called_is_traced():
    assert trace(Negated()).mask == "~(q_idx < kv_idx)"


@pytest.mark.parametrize("given", [{}, {"approximate": True}, {"approximate": False}])
def test_gelu_of_jax_is_by_tanh_unless_told_otherwise(given):
    gelu = of("jax._src.nn.functions", "gelu")
    score = trace(score=lambda s, b, h, q, k: gelu(s, **given)).score  # noqa: ARG005
    exact = 0.5 * 1.5 * math.erfc(-1.5 / math.sqrt(2))
    by_tanh = 0.75 * (1 + math.tanh(math.sqrt(2 / math.pi) * (1.5 + 0.044715 * 1.5**3)))
    assert worth(score, 1.5) == pytest.approx(by_tanh if given.get("approximate", True) else exact, rel=1e-9)


@pytest.mark.parametrize(("name", "message"), [("div", "rounds towards 0"), ("round", "rounds halves away from 0")])
def test_what_jax_lax_calls_otherwise_is_refused(name, message):
    function = of("jax._src.lax.lax", name)
    with pytest.raises(SpecError, match=rf"jax\.lax\.{name}(.|\n)*{message}"):
        trace(score=lambda s, b, h, q, k: function(s, 2.0))  # noqa: ARG005
    plain = of("jax.numpy", "divide")
    assert trace(score=lambda s, b, h, q, k: plain(s, np.float32(2.0))).score == "s / 2.0"  # noqa: ARG005
