"""Advice for words that the language has not, in each expression of a spec."""

import numpy as np
import pytest

import flashgen
from flashgen.errors import SpecError
from flashgen.expr import lower
from flashgen.expr.language import one_pass
from flashgen.expr.language.functions import FUNCTIONS
from flashgen.expr.language.masks import MASKS
from flashgen.expr.language.scope import words
from flashgen.spec import loads

TEXTS = {
    "score: s - lse": (12, "unknown name 'lse'", "softmax: none and score: min"),
    "mask: p > 0.1": (7, "unknown name 'p'", "Take two calls"),
    "weight: p": (9, "unknown name 'p'", "Take two calls"),
    "weight: 2.0 * s": (15, "unknown name 's'", "takes two calls"),
    "mask: s > 0.1": (7, "unknown name 's'", "where(s > 0.1, s, log(0.0))"),
    "output: o * lse": (13, "unknown name 'lse'", "outputs: [o, lse]"),
    "output: o / norm(o)": (13, "unknown function 'norm'", "after the call"),
    "output: rmsnorm(o)": (9, "unknown function 'rmsnorm'", "after the call"),
    "output: o * kv_idx": (13, "unknown name 'kv_idx'", "it reads o, b, h, hk"),
    "score: relu(s)": (8, "unknown function 'relu'", "write max(x, 0.0)"),
    "score: clip(s, 0.0, 1.0)": (8, "unknown function 'clip'", "write min(max(x, low), high)"),
    "score: where(kv_idx > 3, s, -inf)": (30, "unknown name 'inf'", "log(0.0)"),
    "score: s + sum": (12, "unknown name 'sum'", "write sum(i, 4"),
    "score: s + sum(i=4)": (16, "arguments of sum are given by position", "write sum(i, 4"),
    "score: sum(*s)": (12, "arguments of sum are given by position", "write sum(i, 4"),
    "softmax: {sink: s}": (17, "unknown name 's'", "only score reads s"),
    "softmax: entmax": (10, "unknown softmax 'entmax'", "log(f(s))"),
    "softmax: {entmax: 1.5}": (11, "unknown key 'softmax.entmax'", "log(f(s))"),
    "softmax: sigmoid": (10, "unknown softmax 'sigmoid'", "write score: sigmoid(s)"),
    "mask: causal == 1": (7, "expected a number, this is a condition", "write it alone, or ~ before it"),
    "weight: 2.0": (9, "expected an expression as text, got the number 2.0", 'write it as text: "2.0"'),
}


@pytest.mark.parametrize("text", TEXTS)
def test_advice(text):
    column, message, hint = TEXTS[text]
    with pytest.raises(SpecError) as caught:
        lower(loads(f"dtype: float32\nhead_dim: 16\n{text}\n"))
    said = str(caught.value)
    assert said.startswith(f"<spec>:3:{column}: ")
    assert message in said
    assert hint in said


def test_no_word_of_the_language_has_advice():
    taken = (words() | {"sum"}) - {"s", "kv_idx", "float"}  # which a few expressions alone do not read
    assert not taken & (one_pass.OF_OUTPUT.keys() | one_pass.OF_KEYS.keys() | one_pass.IN_OTHER_WORDS.keys())


@pytest.mark.parametrize("name", ["sum", *FUNCTIONS, *MASKS])
def test_strange_arguments_are_a_message_for_every_function(name):
    for arguments in ("x=3", "*s", "**s", "s, y=2", "", "s, s, s, s, s"):
        with pytest.raises(SpecError, match=r"^<spec>:3:\d+: "):
            lower(loads(f"dtype: float32\nhead_dim: 16\nscore: s + {name}({arguments})\n"))


def test_minus_infinity_in_a_score_hides_a_key_as_the_advice_says():
    spec = {"dtype": "float32", "head_dim": 16}
    hidden = flashgen.compile(spec | {"score": "where(kv_idx > 1, s, log(0.0))"}, backend="interpreter")
    masked = flashgen.compile(spec | {"mask": "kv_idx > 1"}, backend="interpreter")
    q = np.random.default_rng(0).standard_normal((1, 8, 1, 16), "float32")
    assert abs(hidden(q, q, q) - masked(q, q, q)).max() < 1e-6
