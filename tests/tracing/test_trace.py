"""Python functions as expressions: what they compute stays what it was, and what cannot be traced is told at its line."""

import functools
import inspect
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import flashgen
from flashgen.errors import CallError, SpecError
from flashgen.expr.language.nodes import Call, names, walk
from flashgen.expr.language.parse import Parser
from flashgen.expr.meaning.definition import meaning
from flashgen.expr.meaning.reference import reference
from flashgen.spec import Spec
from flashgen.tracing import trace
from tests.expr import grammar
from tests.test_api import error, qkv

NAMES = {"min": np.minimum, "max": np.maximum, "abs": np.absolute, "where": np.where, "round": np.rint, "int": np.trunc}
NAMES |= {name: getattr(np, name) for name in ("exp", "exp2", "log", "sqrt", "sin", "cos", "tanh", "floor")}
ARRAYS = {t.name: np.zeros([9] * len(t.shape), t.dtype) for t in grammar.TENSORS}
W, SLOPES = 5, np.linspace(0.1, 0.4, 4, dtype=np.float32)


def parsed(text):
    return Parser(grammar.SCOPE, text, None).node(Parser(grammar.SCOPE, text, None).tree())


def known(text):
    """A text of the grammar that a function of the four indices can say: no lengths, named masks or functions that NumPy lacks."""
    return not any(
        word in text
        for word in ("hk", "_len", "causal", "window", "prefix", "chunk", "document", "full", "bit", "erf", "lu(", "plus", "sigmoid")
    )


@given(grammar.floats(2, True).filter(known) | grammar.conditions(2, s=False).filter(known))
def test_the_text_of_a_function_is_what_it_computes(text):
    assume(all(names(node) for node in walk(parsed(text)) if isinstance(node, Call) and node.op == "~"))  # ~False is -1 in Python
    captured = {p.name: p.default for p in grammar.PARAMS} | ARRAYS
    arguments = "b, h, q_idx, kv_idx" if parsed(text).type == "bool" else "s, b, h, q_idx, kv_idx"
    function = eval(f"lambda {arguments}: ({text})", NAMES | captured)
    found = trace(score=function) if "s," in arguments else trace(function)
    again = found.score if "s," in arguments else found.mask
    for seed in range(3):
        random = np.random.default_rng(seed)
        values = {"s": random.normal(), **{name: random.integers(3) for name in ("b", "h", "q_idx", "kv_idx")}}
        values |= {p.name: p.default for p in grammar.PARAMS} | {
            t: random.integers(0, 9, x.shape).astype(x.dtype) for t, x in ARRAYS.items()
        }
        with np.errstate(all="ignore"):
            got, want = (meaning(parsed(one), values) for one in (again, text))
        np.testing.assert_allclose(np.float64(got), np.float64(want), rtol=1e-5, atol=1e-5)
    assert all(found.values[name] is captured[name] for name in found.values)


def causal(b, h, q_idx, kv_idx):  # noqa: ARG001
    return q_idx >= kv_idx


def local(b, h, q, k):
    return (q - k < W) & causal(b, h, q, k)


def soft(s, b, h, q, k):  # noqa: ARG001
    return 20.0 * np.tanh(s / 20.0) + (k - q) * SLOPES[h]


def hiding(s, b, h, q, k):  # noqa: ARG001
    return np.where(k % 3 == 0, -math.inf, np.where(q >= k, s.clip(-1.0, 1.0), -float("inf")))


class Window:
    def __init__(self, width):
        self.width = width

    def seen(self, b, h, q, k):  # noqa: ARG002
        return abs(q - k) <= self.width

    __call__ = seen


def late(b, h, q, k, n=3, *, ids=ARRAYS["ids"]):  # noqa: ARG001
    return (q - k < n) & (ids[b, k] > 0)


def documents(ids):
    return lambda b, h, q, k: (ids[b][q] == ids[b, k]) & np.logical_not(k == 2)  # noqa: ARG005


@pytest.mark.parametrize(
    ("functions", "texts", "names"),
    [
        ({"mask": causal}, ("q_idx >= kv_idx", "s"), ""),
        ({"mask": local}, ("(q_idx - kv_idx < W) & (q_idx >= kv_idx)", "s"), "W"),
        ({"score": soft}, ("full", "20.0 * tanh(s / 20.0) + (kv_idx - q_idx) * SLOPES[h]"), "SLOPES"),
        ({"score": hiding}, ("~(kv_idx % 3 == 0) & (q_idx >= kv_idx)", "min(max(s, -1.0), 1.0)"), ""),
        ({"mask": local, "score": hiding}, None, "W"),
        ({"mask": Window(7).seen}, ("abs(q_idx - kv_idx) <= width", "s"), "width"),
        ({"mask": functools.partial(lambda n, b, h, q, k: q - k < n, 9)}, ("q_idx - kv_idx < n", "s"), "n"),  # noqa: ARG005
        ({"mask": Window(7)}, ("abs(q_idx - kv_idx) <= width", "s"), "width"),
        ({"mask": late}, ("(q_idx - kv_idx < 3) & (ids[b, kv_idx] > 0)", "s"), "ids"),
        ({"mask": documents(ARRAYS["ids"])}, ("(ids[b, q_idx] == ids[b, kv_idx]) & ~(kv_idx == 2)", "s"), "ids"),
        ({"mask": lambda b: True}, None, None),  # noqa: ARG005
        ({"mask": lambda b, h, q, k: True}, ("full", "s"), ""),  # noqa: ARG005
    ],
)
def test_functions_as_people_write_them(functions, texts, names):
    if names is None:
        with pytest.raises(SpecError, match="takes 1 arguments"):
            trace(**functions)
        return
    found = trace(**functions)
    assert texts is None or (found.mask, found.score) == texts
    assert set(found.values) == set(names.split())


def test_a_name_of_the_language_is_given_another():
    def near(causal, b, h, q, k):  # noqa: ARG001
        return q - k < causal

    exp = 4
    found = trace(functools.partial(near, 3)), trace(lambda b, h, q, k: q < exp)  # noqa: ARG005
    assert [one.mask for one in found] == ["q_idx - kv_idx < my_causal", "q_idx < my_exp"]


def branches(b, h, q, k):  # noqa: ARG001
    return True if q > k else False  # noqa: SIM210


def adds_keys(s, b, h, q, k):  # noqa: ARG001
    return s + np.cumsum(s)


def adds_a_tensor(s, b, h, q, k):  # noqa: ARG001
    return s + SLOPES


def loops(s, b, h, q, k):  # noqa: ARG001
    return sum(s for _ in range(q))


def looks_up(b, h, q, k):  # noqa: ARG001
    return q >= {0: 1}[k]


def converts(s, b, h, q, k):  # noqa: ARG001
    return s * float(q)


def returns_nothing(b, h, q, k):  # noqa: ARG001
    q >= k  # noqa: B015


@pytest.mark.parametrize(
    ("function", "kind", "message"),
    [
        (branches, "mask", "known in the kernel alone"),
        (adds_keys, "score", "no expression has cumsum"),
        (adds_a_tensor, "score", "SLOPES is a tensor: give it an index for each axis"),
        (loops, "score", "here Python wants a number"),
        (looks_up, "mask", "here Python wants a key"),
        (converts, "score", "an integer becomes a float where it meets one"),
        (returns_nothing, "mask", "returns_nothing returns nothing"),
    ],
)
def test_what_cannot_be_traced_is_told_at_its_line(function, kind, message):
    lines, first = inspect.getsourcelines(function)
    at = next(first + i for i, line in enumerate(lines) if "return" in line)  # or whose name has it
    with pytest.raises(SpecError, match=rf"test_trace.py:{at}:\d+: (.|\n)*{message}"):
        trace(**{kind: function})


@given(st.integers(1, 12), st.integers(1, 12))
def test_attention_takes_functions(q_len, kv_len):
    q, k, v = qkv(2, q_len, kv_len, 4, 2)
    ids = np.arange(kv_len, dtype=np.int32)[None].repeat(2, 0) // 3
    got = flashgen.attention(q, k, v, lambda b, h, q, k: causal(b, h, q, k) | (ids[b, k] == q // 3), score=soft)
    want = reference(
        Spec(
            head_dim=16,
            dtype="float32",
            mask="(q_idx >= kv_idx) | (ids[b, kv_idx] == q_idx // 3)",
            score="20.0 * tanh(s / 20.0) + (kv_idx - q_idx) * slopes[h]",
            tensors={"slopes": {"shape": ["hq"], "dtype": "float32"}, "ids": {"shape": ["b", "kv_len"], "dtype": "int32"}},
        ),
        *(q, k, v),
        slopes=SLOPES,
        ids=ids,
    )
    assert error(got, want[0]) < 1e-5


def test_a_spec_of_functions():
    spec = trace(documents(ARRAYS["ids"]), soft).spec(head_dim=64, dtype="float16")
    assert [(t.name, t.shape, t.dtype) for t in spec.tensors] == [("SLOPES", ("hq",), "float32"), ("ids", ("b", "kv_len"), "int32")]
    assert trace(documents(np.zeros((2, 3), np.int64))).spec(head_dim=64, dtype="float16").tensors[0].dtype == "int64"
    with pytest.raises(SpecError, match="ids is int16"):
        trace(documents(np.zeros((2, 3), np.int16))).spec(head_dim=64, dtype="float16")


def test_a_keyword_that_the_function_has_too():
    with pytest.raises(CallError, match="W is given, and the function has its own"):
        flashgen.attention(*qkv(), local, W=3)
