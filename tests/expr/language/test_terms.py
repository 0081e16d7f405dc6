"""Sums over a literal index are their terms; what one pass cannot have is told with what to do instead."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flashgen
from flashgen.bench import hostile
from flashgen.emulate import emulate
from flashgen.errors import Position, SpecError
from flashgen.expr import evaluate, fold, lower, parse, show
from flashgen.expr.language.nodes import Summation, unrolled, walk
from flashgen.expr.meaning.definition import meaning
from flashgen.plan import plan
from flashgen.plan.geometry import Sizes
from flashgen.render import render
from flashgen.spec import Spec, load, loads
from tests.expr import grammar
from tests.expr.grammar import SCOPE
from tests.expr.meaning.test_gradient import place
from tests.plan.agreement import judge_of

HEAD = {"head_dim": 64, "dtype": "bfloat16"}


@given(grammar.floats(1, True), st.integers(1, 4))
def test_a_sum_is_its_terms(term, count):
    texts = [f"({term}) * (t_ - 1.5) + table[t_, h]".replace("t_", f"{i}") for i in range(count)]
    declared = grammar.declared(term, "table")
    found, want = (
        lower(Spec(**HEAD, score=f"s + ({text})", **declared))
        for text in (f"sum(t_, {count}, ({term}) * (t_ - 1.5) + table[t_, h])", " + ".join(f"({text})" for text in texts))
    )
    assert fold(unrolled(found.score)) == want.score


@given(grammar.floats(1, True), st.integers(20, 40))
def test_a_long_sum_is_a_node_of_the_same_value(term, count):
    """Evaluated, by the rules of the language, and as text that is read again."""
    text = f"s + sum(t_, {count}, ({term}) * (0.1 * t_ - 1.5) + s * table[t_ % 5, h])"
    found = lower(Spec(**HEAD, score=text, **grammar.declared(term, "table"))).score
    (whole,) = [node for node in walk(found) if isinstance(node, Summation)]
    values = place(count)
    np.testing.assert_allclose(evaluate(found, values), evaluate(unrolled(found), values))
    np.testing.assert_array_equal(meaning(found, values), meaning(unrolled(found), values))
    assert whole.index.count == count
    assert parse(show(found), SCOPE, Position("<score>", 1, 1, show(found))) == found


@pytest.mark.parametrize(
    ("score", "loops"),
    [
        ("s + sum(n, 4, w[n] * max(w[n + 4] * kv_idx + w[n + 8], 0.0))", 0),  # a few reads
        ("s + sum(n, 5, w[n] * max(w[n + 4] * kv_idx + w[n + 8], 0.0))", 1),
        ("s + sum(n, 64, w[n] * 2.0)", 0),  # alike for a query tile
        ("s + sum(n, 64, w[n] * q_idx)", 0),  # and for a row
        ("s + sum(n, 64, n * kv_idx)", 0),  # of integers
        ("s + sum(n, 8, w[n] * w[n + 8] * s ** n)", 0),  # an exponent is a number of the text
        ("s + sum(n, 64, cos(n * s))", 0),
        ("s + sum(n, 64, cos(n * s) + sin(n * s))", 1),  # many operations
        ("s + sum(i, 2, sum(n, 32, i * w[n] * kv_idx))", 2),
        ("s + sum(n, 32, sum(i, 2, i * w[n] * kv_idx))", 1),
        ("s + sum(n, 8, w[n] * sum(i, 32, w[i] * kv_idx))", 8),  # which are equal
        ("s + sum(n, 32, w[n] * w[n + kv_idx])", 0),  # each key has reads of its own
        ("s + sum(n, 32, w[n] * w[kv_idx])", 1),  # and here the same for all terms
    ],
)
def test_what_is_a_loop(score, loops):
    found = lower(Spec(**HEAD, score=score, tensors={"w": {"shape": ["any"], "dtype": "float32"}} if "w[" in score else {}))
    assert sum(isinstance(node, Summation) for node in walk(found.score)) == loops


def test_a_mask_and_what_floats_decide_have_their_terms():
    w = {"tensors": {"w": {"shape": [32], "dtype": "float32"}}}
    assert not any(isinstance(node, Summation) for node in walk(lower(Spec(**HEAD, mask="sum(n, 32, w[n] * kv_idx) > 0.0", **w)).mask))
    decided = Spec(**HEAD, score="s + where(sum(n, 32, w[n] * kv_idx) > 0.0, 1.0, 0.0)", **w)
    assert "__fadd_rn" in render(plan(decided, "sm_90a")).text


def test_sums_of_integers_of_sums_in_lets_and_masks():
    given_ = {"let": {"near": "sum(i, 3, sum(j, 2, i * j * kv_idx)) < n"}, "mask": "near", "params": {"n": 40}}
    want = {"mask": "(0 + 0) + (0 + kv_idx) + (0 + 2 * kv_idx) < n", "params": {"n": 40}}
    values = {"kv_idx": np.arange(30), "n": 40, "q_idx": 0}
    np.testing.assert_array_equal(evaluate(lower(Spec(**HEAD, **given_)).mask, values), evaluate(lower(Spec(**HEAD, **want)).mask, values))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_many_units(arch):
    """FIRE with 32 units, and a line is told as the spec has it."""
    keys = load("specs/language/fire.yaml").to_json()
    shapes = {"a": [32], "r": [32], "w": [32, "hq"]}
    tensors = {name: {"shape": shape, "dtype": "float32"} for name, shape in shapes.items()}
    spec = Spec(**keys | {"score": keys["score"].replace("4", "32"), "tensors": tensors})
    q, k, v, values = hostile.draw(spec, Sizes(1, 17, 70, 2, 1), [], np.random.RandomState(0))
    chosen = plan(spec, arch)
    source = render(chosen)
    assert "// s + sum(n, 32, " in source.text
    assert max(map(len, source.text.split("\n"))) <= 160
    judge_of(spec, q, k, v, 1e-2, **values)(emulate(chosen, source, q, k, v, values))


@pytest.mark.parametrize(
    ("score", "column", "message", "hint"),
    [
        ("s + sum(s)", 5, "sum takes 3 arguments, got 1", "it adds terms of one key, and never keys"),
        ("s + sum(2, 3, s)", 9, "the index of a sum is a name", ""),
        ("s + sum(h, 3, s)", 9, "h has a meaning already", ""),
        ("sum(i, 2, sum(i, 3, s))", 15, "i has a meaning already", ""),
        ("sum(i, kv_len, s)", 8, "how many terms a sum has is a whole number of the text", "write 1 to 64"),
        ("sum(i, 65, s)", 8, "how many terms a sum has is a whole number of the text", ""),
        ("sum(i, 3, s < i)", 11, "expected a number, this is a condition", ""),
        ("sum(i, 3, s) + i", 16, "unknown name 'i'", ""),
        ("sum(i, 64, sum(j, 64, s * i * j))", 12, r"\d+ operations in a sum", "allowed: 4000"),
        ("softmax(s)", 1, "unknown function 'softmax'", r"score: log\(f\(s\)\)"),
        ("entmax(s)", 1, "unknown function 'entmax'", "want their scores in memory"),
        ("s + p", 5, "unknown name 'p'", r"Take two calls: outputs: \[o, lse\]"),
        ("min(lse, s)", 5, "unknown name 'lse'", r"softmax: none and score: min\(exp\(s - row_lse"),
        ("s[kv_idx - 1] + s", 1, "'s' is not a tensor", "wants q k.T in memory"),
        ("topk(s, 3)", 1, "unknown function 'topk'", "a score sees only its own s"),
    ],
)
def test_mistakes(score, column, message, hint):
    with pytest.raises(SpecError, match=rf"<spec>:3:{7 + column}: {message}(.|\n)*{hint}"):
        lower(loads(f"dtype: float16\nhead_dim: 64\nscore: {score}\n"))


def test_the_two_calls_of_a_message_are_what_it_says():
    q = np.random.default_rng(0).standard_normal((1, 20, 1, 16)).astype(np.float32)
    _, lse = flashgen.compile({"head_dim": 16, "dtype": "float32", "outputs": ["o", "lse"]}, backend="interpreter")(q, q, q)
    clipped = {"softmax": "none", "score": "min(exp(s - row_lse[b, h, q_idx]), limit)", "params": {"limit": 0.1}}
    tensors = {"row_lse": {"shape": ["b", "hq", "q_len"], "dtype": "float32"}}
    attention = flashgen.compile({"head_dim": 16, "dtype": "float32", **clipped, "tensors": tensors}, backend="interpreter")
    s = q[0, :, 0] @ q[0, :, 0].T / 4
    weights = np.exp(s) / np.exp(s).sum(-1, keepdims=True)
    np.testing.assert_allclose(attention(q, q, q, row_lse=lse)[0, :, 0], np.minimum(weights, 0.1) @ q[0, :, 0], atol=1e-5)
    assert re.search("row_lse", clipped["score"])
