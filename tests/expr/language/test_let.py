"""Named subexpressions: a spec with them is the spec with their texts in their place; mistakes are told where they are written."""

import re

import pytest
from hypothesis import given

from flashgen.errors import SpecError
from flashgen.expr import lower
from flashgen.spec import Spec, loads
from tests.expr import grammar

HEAD = {"head_dim": 64, "dtype": "bfloat16"}


@given(grammar.ints(1), grammar.conditions(1, s=False), grammar.floats(1, True))
def test_a_let_is_its_text_in_parentheses(distance, near, score):
    let = {"d": distance, "near": f"(d > 2) & ({near})", "t": f"{score} + 0.5 * d"}
    texts = {"mask": "near | (d < kv_idx)", "score": "t + where(near, 1.0, s)"}
    found = lower(Spec(**HEAD, **texts, let=let, **grammar.declared(*let.values())))
    plain = dict(texts)
    for name, text in reversed(let.items()):
        plain = {key: re.sub(rf"\b{name}\b", f"({text})", expression) for key, expression in plain.items()}
    want = lower(Spec(**HEAD, **plain, **grammar.declared(*let.values())))
    assert (found.score, found.mask) == (want.score, want.mask)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"let": {"far": "q_idx"}}, "no expression reads the let 'far'"),
        ({"let": {"a": "b_ + 1", "b_": "q_idx"}, "mask": "a > b_"}, r"<let.a>:1:1: unknown name 'b_'(.|\n)*reads those above it"),
        ({"let": {"a": "a + 1"}, "mask": "a > 1"}, r"<let.a>:1:1: unknown name 'a'(.|\n)*reads those above it"),
        (
            {"let": {"a": "q_idx", "b_": "c_", "c_": "d_ + a", "d_": "a"}, "mask": "a + b_ + c_ > d_"},
            r"<let.b_>:1:1: unknown name 'c_'(.|\n)*reads those above it, and c_",
        ),
        ({"let": {"t": "s + 1"}, "mask": "t > 0"}, r"<let.t>:1:1: unknown name 's'(.|\n)*only score reads s"),
        ({"let": {"causal": "q_idx > 3"}, "mask": "causal"}, "let.causal: 'causal' is a word of the expression language"),
        ({"let": {"n": "1"}, "params": {"n": 2}, "mask": "n < kv_idx"}, "let.n: 'n' is a param too"),
        ({"let": {"x": "q_idx +* 2"}, "mask": "x > 1"}, r"<let.x>:1:8: invalid syntax"),
        ({"let": {"x": "q_idx // n"}, "mask": "x > 1", "params": {"n": -2}}, None),
        ({"let": {"b": "q_idx"}, "mask": "b > 1"}, "let.b: 'b' is a word of the expression language"),
        ({"let": {"big": "q_idx * q_idx * q_idx"}, "mask": "big > 1"}, r"<let.big>:1:1: an integer that may pass 64 bits"),
        ({"let": {"q_": "kv_idx > 1"}, "mask": "q_ + 1 > 2"}, r"<mask>:1:1: expected a number, this is a condition"),
    ],
)
def test_mistakes(given, message):
    if message is None:
        assert [rule.text for rule in lower(Spec(**HEAD, **given)).requires] == ["n > 0"]
        return
    with pytest.raises(SpecError, match=message):
        lower(Spec(**HEAD, **given))


def test_positions_in_a_file():
    text = "dtype: float16\nhead_dim: 64\nlet:\n  near: (q_idx - kv_idx) < reach\nmask: near\n"
    with pytest.raises(SpecError, match=r"<spec>:4:28: unknown name 'reach'"):
        lower(loads(text))


def test_what_doubles_at_each_let_is_refused_at_once():
    let = {f"x{i}": f"x{i - 1} + x{i - 1}" if i else "kv_idx" for i in range(60)}
    with pytest.raises(SpecError, match="more than 1000 operations"):
        lower(Spec(**HEAD, let=let, mask="x59 > 0"))


def test_d_is_the_head_dim_in_scale_whatever_a_let_says():
    spec = Spec(**HEAD, let={"d": "q_idx - kv_idx"}, mask="d < 9", scale="1 / d")
    assert Spec(**spec.to_json()) == spec
    assert lower(spec).scale == lower(Spec(**HEAD, scale="1 / d")).scale
