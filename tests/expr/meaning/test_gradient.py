"""Derivatives of expressions: against central differences in float64, at kinks, and where a branch is not taken."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from flashgen.errors import Position, SpecError
from flashgen.expr import evaluate, fold, lower, parse, show
from flashgen.expr.language.function import Function
from flashgen.expr.language.functions import FUNCTIONS, row
from flashgen.expr.language.nodes import Call, Name, rebuild, walk
from flashgen.expr.language.operators import COMPARISONS, OPERATORS
from flashgen.expr.meaning.gradient import S, derivative, derivatives, variables
from flashgen.spec import Spec
from tests.expr.grammar import CORNER_SCORES, PARAMS, SCOPE, TENSORS, floats

EXTENTS = {"b": 2, "hq": 4, "hk": 2, "q_len": 5, "kv_len": 6}
X = Name("x", "float")
ROWS = [x for x in (*OPERATORS.values(), *FUNCTIONS.values()) if isinstance(x, Function)]
OF_FLOATS = [x for x in ROWS if x.takes in ("floats", "numbers", "choice") and x.gives != "bool"]


def read(text):
    return fold(parse(text, SCOPE, Position("<score>", 1, 1, text)))


def place(seed):
    """Values of every name for batch 1, query head 3: s [5, 6]."""
    rng = np.random.default_rng(seed)
    draw = {
        "float32": rng.standard_normal,
        "int32": lambda s: rng.integers(0, 4, s),
        "bool": lambda s: rng.random(s) < 0.5,
    }
    tensors = {t.name: draw[t.dtype](tuple(EXTENTS.get(x, x) for x in t.shape)) for t in TENSORS}
    index = {"b": 1, "h": 3, "hk": 1, "q_idx": np.arange(5)[:, None], "kv_idx": np.arange(6)[None], "q_len": 5, "kv_len": 6}
    return {**tensors, **{p.name: p.default for p in PARAMS}, **index, "s": 2 * rng.standard_normal((5, 6))}


def with_x(node, variable):
    """The node with x in place of a variable."""
    return X if node == variable else rebuild(node, lambda child: with_x(child, variable))


def decisions(node, values):
    """All that a float decides in an expression."""
    for n in walk(node):
        if isinstance(n, Call) and n.args[0].type == "float":
            if n.op in ("floor", "round", "int", *COMPARISONS):
                yield evaluate(n, values)
            elif n.op == "abs":
                yield np.sign(evaluate(n.args[0], values))
            elif n.op in ("min", "max"):
                yield np.sign(evaluate(n.args[0], values) - evaluate(n.args[1], values))


def difference(node, values, step):
    """The central difference by x."""
    ends = [evaluate(node, {**values, "x": values["x"] + d}) for d in (-step, step)]
    return (ends[1] - ends[0]) / (2 * step)


def judge(node, variable, values):
    """A derivative against central differences, wherever no decision changes within a step."""
    x = np.asarray(evaluate(variable, values), np.float64)
    node, found = with_x(node, variable), with_x(derivative(node, variable), variable)
    values = {**values, "x": x}
    coarse, fine = difference(node, values, 1e-4), difference(node, values, 5e-5)
    far = [{**values, "x": x + d} for d in (-1e-4, 0.0, 1e-4)]
    shape = np.broadcast_shapes(np.shape(coarse), x.shape)
    smooth = np.isfinite(np.broadcast_to(fine, shape))
    for low, middle, high in zip(*(decisions(node, v) for v in far), strict=True):
        smooth = smooth & (low == middle) & (middle == high)
    off = np.abs(evaluate(found, values) - fine)
    size = np.abs(evaluate(node, values)) + np.abs(fine) + 1
    allowed = 1e-6 * size + 2 * np.abs(coarse - fine)
    assert np.all(~smooth | (off <= allowed)), (show(node), show(found), np.max(np.where(smooth, off, 0)))


@pytest.mark.parametrize("text", CORNER_SCORES)
def test_corners_against_differences(text):
    node = read(text)
    for variable in (S, *variables(node)):
        judge(node, variable, place(1))


@given(floats(3), st.data())
def test_any_expression_against_differences(text, data):
    try:
        node = read(text)
    except SpecError:
        reject()  # an integer that may pass 64 bits
    judge(node, data.draw(st.sampled_from([S, *variables(node)])), place(data.draw(st.integers(0, 99))))


@pytest.mark.parametrize("function", OF_FLOATS, ids=lambda x: x.name)
def test_every_function_of_floats_has_its_derivatives(function):
    assert len(function.derivative) == len(function.parameters) - (function.takes == "choice")
    args = [Name("c", "bool")] * (function.takes == "choice") + [Name(p, "float") for p in ("u", "v")]
    node = Call(function.name, tuple(args[: len(function.parameters)]), "float")
    values = {"c": np.asarray([True, False]), "u": np.float64([0.7, 2.3]), "v": np.float64([1.9, 0.4])}
    for arg in node.args:
        if arg.type == "float" and function.gives != "int":
            judge(node, arg, values)


def test_a_function_without_a_derivative_is_told_where_it_stands(monkeypatch):
    monkeypatch.setitem(FUNCTIONS, "tanh", dataclasses.replace(row("tanh"), derivative=()))
    with pytest.raises(SpecError, match="the function tanh has no derivative") as error:
        derivatives(Spec(head_dim=16, dtype="float16", score="s + 2 * tanh(s)"))
    assert error.value.position.column == 9
    assert "cell `derivative`" in error.value.hint
    derivatives(Spec(head_dim=16, dtype="float16", score="s + tanh(0.1 * kv_idx)"))  # of nothing that a gradient is asked by


@pytest.mark.parametrize(
    ("text", "at", "slope"),
    [
        ("abs(s)", 0.0, 0.0),
        ("max(s, 0)", 0.0, 0.5),
        ("max(0, s)", 0.0, 0.5),
        ("min(s, 0)", 0.0, 0.5),
        ("max(s, -s)", 0.0, 0.0),
        ("max(s, 2 * s - 1)", 1.0, 1.5),
        ("softplus(s)", 0.0, 0.5),
        ("where(s >= 0, 3 * s, s)", 0.0, 3.0),
        ("where(s > 0, 3 * s, s)", 0.0, 1.0),
        ("floor(s) + round(s) + int(s)", 1.0, 0.0),
    ],
)
def test_at_kinks(text, at, slope):
    assert evaluate(derivative(read(text), S), {"s": np.float64(at)}) == pytest.approx(slope)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("where(s > 0, log(s), 0.5 * s)", 0.0),
        ("where(s > 0, sqrt(s), 0.5 * s)", -2.0),
        ("max(log(s), 0.5 * s - 1)", 0.0),
        ("sqrt(max(s, 0)) + 0.5 * s", -2.0),
        ("log(where(s > 0, s, 0)) + 0.5 * s", -2.0),
    ],
)
def test_the_branch_that_is_not_taken_does_not_matter(text, at):
    assert evaluate(derivative(read(text), S), {"s": np.float64(at)}) == 0.5


@pytest.mark.parametrize(
    ("text", "variable", "shown"),
    [
        ("c * tanh(s / c)", S, "1.0 - tanh(s / c) * tanh(s / c)"),
        ("sigmoid(s)", S, "sigmoid(s) * (1.0 - sigmoid(s))"),
        ("exp(s)", S, "exp(s)"),
        ("s ** 2", S, "2.0 * s"),
        ("s ** 2.0", S, "2.0 * s"),
        ("s + slopes[h] * (kv_idx - q_idx)", S, "1.0"),
        ("s + slopes[h] * (kv_idx - q_idx)", 0, "kv_idx - q_idx"),
        ("s * bias[hk, q_idx, kv_idx]", 0, "s"),
        ("table[int(s), h] * s", S, "table[int(s), h]"),
        ("max(s, 0)", S, "where(s < 0.0, 0.0, where(s > 0.0, 1.0, 0.5))"),
    ],
)
def test_as_their_author_would_write_them(text, variable, shown):
    node = read(text)
    assert show(derivative(node, variables(node)[variable] if variable == 0 else variable)) == shown


def test_of_a_spec():
    spec = Spec(
        head_dim=64,
        dtype="float16",
        score="s + floor(c) + slopes[h] * kv_idx + slopes[hk]",
        scale="t / sqrt(d)",
        softmax={"sink": "u * sinks[h]"},
        params={"c": 1.0, "t": 2.0, "u": 3.0},
        tensors={name: {"shape": ["hq"], "dtype": "float32"} for name in ("slopes", "sinks")},
    )
    found = derivatives(spec)
    shown = [{show(by): show(node) for by, node in part.items()} for part in (found.score, found.sink, found.scale)]
    assert show(found.s) == "1.0"
    assert shown == [{"slopes[h]": "kv_idx", "slopes[hk]": "1.0"}, {"u": "sinks[h]", "sinks[h]": "u"}, {"t": "0.125"}]


@pytest.mark.parametrize(
    ("expressions", "path"),
    [
        ({"score": "s + floor(c)", "params": {"c": {"default": 1.0, "grad": True}}}, "params.c.grad"),
        ({"mask": "x[h] > 1.0", "tensors": {"x": {"shape": ["hq"], "dtype": "float32", "grad": True}}}, "tensors.x.grad"),
    ],
)
def test_a_gradient_that_is_asked_for_and_is_always_0(expressions, path):
    with pytest.raises(SpecError, match=f"{path}: the gradient is 0 whatever") as caught:
        lower(Spec(head_dim=64, dtype="float16", backward=True, **expressions))
    assert caught.value.position == Position(f"<{path}>", 1, 1, path)
