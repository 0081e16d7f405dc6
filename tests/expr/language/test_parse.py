"""Expressions as their authors write them, and every mistake pointed at."""

import contextlib

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flashgen.errors import Position, SpecError
from flashgen.expr import evaluate, fold, lower, parse, show
from flashgen.expr.language.nodes import Call, Const, Name, walk
from flashgen.expr.language.scope import MAX_NODES, MAX_TEXT
from flashgen.spec import Spec
from tests.expr.grammar import SCOPE, conditions, floats


def read(text, scope=SCOPE):
    return parse(text, scope, Position("a.yaml", 3, 7, f"mask: {text}"))


def fault(text, scope=SCOPE):
    with pytest.raises(SpecError) as caught:
        read(text, scope)
    error = caught.value
    return error.position.column - 6, error.message, error.hint


def test_types_are_kept_apart():
    assert read("kv_idx + 1") == Call("+", (Name("kv_idx", "int"), Const(1, "int")), "int")
    assert read("kv_idx + 1.0") == Call("+", (Call("float", (Name("kv_idx", "int"),), "float"), Const(1.0, "float")), "float")
    assert read("1 / 2") == Call("/", (Const(1.0, "float"), Const(2.0, "float")), "float")
    assert read("s > 0") == Call(">", (Name("s", "float"), Const(0.0, "float")), "bool")
    assert read("where(causal, 1, 0.5)").type == "float"
    assert read("sqrt(n)").args == (Call("float", (Name("n", "int"),), "float"),)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("q_idx < kv_idx < 5", "(q_idx < kv_idx) & (kv_idx < 5)"),
        ("causal", "kv_idx <= q_idx + kv_len - q_len"),
        ("prefix(2 * n)", "kv_idx < 2 * n"),
        ("~(n == m) | flags[h, 0]", "~(n == m) | flags[h, 0]"),
        ("-(n - m) // 2 > 0", "-(n - m) // 2 > 0"),
        ("  n\t> 0", "n > 0"),
        ("+n > 0x10", "n > 16"),
        ("(n + 1) ** 2 > 0", "(n + 1) * (n + 1) > 0"),
        ("-s ** 1.5 * 2.0 ** -c > 0", "-(s ** 1.5) * 2.0 ** -c > 0.0"),
        ("silu(s - 1) > 0", "(s - 1.0) * sigmoid(s - 1.0) > 0.0"),
        ("int(s / 2) + int(n) > round(c)", "int(s / 2.0) + n > round(c)"),
        ("document(ids)", "ids[b, kv_idx] == ids[b, q_idx + kv_len - q_len]"),
    ],
)
def test_meaning(text, meaning):
    assert show(read(text)) == meaning


MISTAKES = [
    ("causl & full", 1, "unknown name 'causl'", "did you mean 'causal'?"),
    ("q_idx < kv_idxx", 9, "unknown name 'kv_idxx'", "did you mean 'kv_idx'?"),
    ("tan(s)", 1, "unknown function 'tan'", "did you mean 'tanh'?"),
    ("q_idx < kv_idx & kv_idx < 5", 9, "& joins conditions, this is an integer", "put each comparison in parentheses"),
    ("causal & kv_idx < 5", 10, "& joins conditions, this is an integer", "put each comparison in parentheses"),
    ("~kv_idx < 5", 2, "~ joins conditions, this is an integer", "put each comparison in parentheses"),
    ("causal and full", 1, "`and` or `or` is not part of the language", "write & for `and`"),
    ("not causal", 1, "`not` is not part of the language", "write ~(condition)"),
    ("s if causal else 1", 1, "`if` is not part of the language", "where(condition, then, else)"),
    ("2 ** q_idx", 6, "an integer's exponent is a whole number of the text, from 0 to 8", "write 2.0 ** x"),
    ("n ** 9", 6, "an integer's exponent is a whole number of the text, from 0 to 8", "write 2.0 ** x"),
    ("1 + s.real", 5, "attribute access is not part of the language", "allowed:"),
    ("n(1)", 1, "n is not a function", "functions: exp"),
    ("slopes(h)", 1, "slopes is a tensor", "index it with brackets"),
    ("(tanh)(s)(1)", 1, "only a name can be called", "allowed:"),
    ("__import__('os')", 1, "unknown function '__import__'", "known: exp"),
    ("[i for i in n]", 1, "a comprehension is not part of the language", "allowed:"),
    ("{s}", 1, "set is not part of the language", "allowed:"),
    ("1 + (lambda: 1)", 6, "a lambda is not part of the language", "allowed:"),
    ("f'{s}'", 1, "an f-string is not part of the language", "allowed:"),
    ("(x := 1)", 2, "an assignment is not part of the language", "allowed:"),
    ("s + 'a'", 5, "a constant of type str is not part of the language", "numbers, True, False"),
    ("1j", 1, "a constant of type complex is not part of the language", "numbers, True, False"),
    ("q_idx in n", 1, "`in` is not part of the language", "allowed:"),
    ("causal + 1", 1, "expected a number, this is a condition", "where(condition, 1, 0)"),
    ("min(s, causal)", 8, "expected a number, this is a condition", "where(condition, 1, 0)"),
    ("tanh(s, 1)", 1, "tanh takes 1 arguments, got 2", "write tanh(a)"),
    ("where(causal, 1)", 1, "where takes 3 arguments, got 2", "write where(condition, a, b)"),
    ("where(s, 1, 2)", 7, "the first argument of where is a condition, this is a number", ""),
    ("where(causal, 1, full)", 18, "where chooses between an integer and a condition", "both"),
    ("min(a=1, b=2)", 5, "arguments of min are given by position", "write min(a, b)"),
    ("min(*n)", 5, "arguments of min are given by position", "write min(a, b)"),
    ("window(1)", 1, "window takes 2 arguments, got 1", "write window(left, right)"),
    ("window", 1, "window takes 2 arguments, got 0", "write window(left, right)"),
    ("window(1.5, 0)", 8, "left of window is an integer, this is a number", "divide integers with //"),
    ("tanh", 1, "tanh is a function", "write tanh(a)"),
    ("slopes", 1, "slopes is a tensor", "index it: slopes[i], 1 in all"),
    ("ids[b]", 5, "ids takes 2 indices, got 1", "declared with 2 axes"),
    ("ids[b, 0, 1]", 5, "ids takes 2 indices, got 3", "declared with 2 axes"),
    ("slopes[s]", 8, "an index of slopes is an integer, this is a number", "divide integers with //"),
    ("slopes[causal]", 8, "an index of slopes is an integer, this is a condition", "where(condition, 1, 0)"),
    ("table[5, h]", 7, "table has 5 entries along this axis, and none at 5", "write 0 to 4"),
    ("table[2 - 3, h]", 7, "table has 5 entries along this axis, and none at -1", "write 0 to 4"),
    ("s[kv_idx - 1]", 1, "'s' is not a tensor", "a score sees only its own s"),
    ("cumsum(s)", 1, "unknown function 'cumsum'", "a score sees only its own s"),
    ("entmax(s)", 1, "unknown function 'entmax'", "a score sees only its own s"),
    ("relu(s)", 1, "unknown function 'relu'", "max(x, 0.0)"),
    ("gelo(s)", 1, "unknown function 'gelo'", "gelu"),
    ("(q_idx & 31) == 0", 2, "& joins conditions, this is an integer", "of integers x & 31 is x % 32"),
    ("n[0]", 1, "'n' is not a tensor", "tensors: slopes"),
    ("document(slopes)", 10, "document takes the name of an int32 or int64 tensor of shape [b, kv_len]", "declare it"),
    ("s % 2", 1, "% takes integers", "write a - b * floor(a / b)"),
    ("s // 2", 1, "// takes integers", "write floor(a / b)"),
    ("q_idx // 0", 10, "the right side of // must be positive", "got 0"),
    ("q_idx // (m * 0 - 2)", 11, "the right side of // must be positive", "got m * 0 - 2"),
    ("q_idx % h", 9, "the right side of % must be positive, and this may not be", "write max(1, h)"),
    ("q_idx < 5000000000", 9, "an integer that does not fit", "1073741824"),
    ("s * 1e60", 5, "a number that float32 does not hold", "at most 3.4e38"),
    ("s * 1e-50", 5, "a number that float32 does not hold", "it is 0 in float32"),
    ("", 1, "an empty expression", "allowed:"),
    ("   ", 1, "an empty expression", "allowed:"),
    ("kv_idx <", 9, "invalid syntax", "allowed:"),
    ("kv_idx é 1", 8, "unexpected character 'é'", "ASCII"),
    ("\x00", 1, "unexpected character '\\x00'", "ASCII"),
]


@pytest.mark.parametrize(("text", "column", "message", "hint"), MISTAKES, ids=[m[0] for m in MISTAKES])
def test_mistake(text, column, message, hint):
    at, said, help = fault(text)
    assert (at, said) == (column, message)
    assert hint in help


DEEP = [
    "(" * 10_000 + "1" + ")" * 10_000,
    "(" * 1500 + "1" + ")" * 1500,
    "-" * 10_000 + "1",
    "-" * 3000 + "1",
    "s" + " + s" * 900,
    "~" * 99 + "full",
]


@pytest.mark.parametrize("text", DEEP, ids=lambda text: f"{text[0]} {len(text)}")
def test_depth_is_bounded(text):
    assert any(word in fault(text)[1] for word in ("nested", "characters", "parentheses"))


def test_size_is_bounded():
    assert fault("1 + " * (MAX_TEXT // 4) + "n")[0] == MAX_TEXT + 1
    text = "n"
    for _ in range(15):  # a mask that reads its parameter twice, inside itself
        text = f"where(chunk({text}), 1, 2)"
    assert fault(text)[1] == f"more than {MAX_NODES} operations"


def test_a_line_of_several_is_found():
    with pytest.raises(SpecError) as caught:
        parse("causal &\n  (kv_idx < 5) & windw(1, 0)", SCOPE, Position("<mask>", 1, 1, "causal &"))
    assert (caught.value.position.line, caught.value.position.column) == (2, 18)
    assert caught.value.position.text == "  (kv_idx < 5) & windw(1, 0)"


@given(st.one_of(floats(3), conditions(3)))
@example("s + softplus(kv_idx) + silu(kv_idx) + gelu(-kv_idx)")
def test_show_is_the_inverse_of_parse(text):
    node = read(text)
    assert read(show(node)) == node


@given(st.text(max_size=60) | st.text("sqn_idx0123. ()[]+-*/%&|~<>=,'\"\\\n", max_size=40))
def test_no_text_does_more_than_raise_spec_error(text):
    with contextlib.suppress(SpecError):
        read(text)


@pytest.mark.parametrize("mask", ["window(-2, 0)", "window(-4, 0)", "window(0, -3)", "chunk(0)", "chunk(-1)"])
def test_other_negatives_are_mistakes(mask):
    with pytest.raises(SpecError) as caught:
        lower(Spec(head_dim=64, dtype="float16", mask=mask))
    assert caught.value.position.text == mask
    assert caught.value.hint.startswith("got ")


def test_what_params_must_satisfy():
    spec = Spec(head_dim=64, dtype="float16", mask="window(w, 0) & chunk(n + 1) | (q_idx // p == 0)", params={"w": 4, "n": 3, "p": 2})
    assert [r.text for r in lower(spec).requires] == ["w >= -1", "n + 1 > 0", "p > 0"]


def test_folding():
    spec = Spec(head_dim=64, dtype="float16", mask="causal & window(-1, 0) & full", score="1 * s + 0 * 2")
    found = lower(spec)
    assert show(found.mask) == "kv_idx <= q_idx + kv_len - q_len"
    assert found.score == Name("s", "float")
    assert show(fold(read("0.0 * s + 1.0 / 0.0"))) == "0.0 * s + 1.0 / 0.0"


NUMBERS = st.sampled_from(["0.1", "3.0", "1e-20", "1e30", "7e-39", "3e38", "0.0", "16777217.0", "1.0000001"])
SUMS = st.recursive(
    NUMBERS, lambda x: st.builds("({} {} {})".format, x, st.sampled_from("+-*/"), x) | st.builds("sqrt({})".format, x), max_leaves=5
)


@given(SUMS)
def test_numbers_are_folded_as_float32_computes_them(text):
    """And those that leave its range, or become 0 there, not at all."""
    written, folded = read(f"{text} + 0.0"), fold(read(f"{text} + 0.0"))
    for const in (node for node in walk(folded) if isinstance(node, Const) and node.type == "float"):
        assert const.value == np.float32(const.value)
        assert np.isfinite(const.value)
    for op in "<>":
        assert not evaluate(Call(op, (written, folded), "bool"), {})


@pytest.mark.parametrize("text", ["1e-30 * 1e-30", "1e30 * 1e30", "exp(-2e3)", "exp2(-1e4)", "1.0 / 0.0", "1e-30 / 1e30"])
def test_what_leaves_float32_is_not_folded(text):
    assert show(fold(read(f"s + {text}"))) == show(read(f"s + {text}"))


@pytest.mark.parametrize(
    ("scale", "why"), [("1e-30 * 1e-30", "it is 0 in float32"), ("1 / (d - 64)", "expected a finite number of float32")]
)
def test_a_scale_that_float32_does_not_hold(scale, why):
    with pytest.raises(SpecError, match=f"<scale>:1:1: scale is .*: {why}"):
        lower(Spec(head_dim=64, dtype="float16", scale=scale))


def test_where_expressions_stand_in_a_spec():
    spec = Spec(head_dim=64, dtype="float16", score="causal", scale="1/sqrt(e)")
    with pytest.raises(SpecError, match="<score>:1:1: expected a number, this is a condition"):
        lower(spec)
    with pytest.raises(SpecError, match="<mask>:1:1: expected a condition, this is an integer"):
        lower(Spec(head_dim=64, dtype="float16", mask="kv_idx"))
    with pytest.raises(SpecError, match="<scale>:1:8: unknown name 'e'"):
        lower(Spec(head_dim=64, dtype="float16", scale="1/sqrt(e)"))
    with pytest.raises(SpecError, match="only score reads s"):
        lower(Spec(head_dim=64, dtype="float16", mask="s > 0"))
