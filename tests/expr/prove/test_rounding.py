"""The way tanh and sigmoid are computed: bounds against errors put into them, and the choice."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashgen.expr import holes, lower
from flashgen.expr.language.fold import fold
from flashgen.expr.language.functions import row
from flashgen.expr.language.nodes import Call
from flashgen.expr.language.parse import Parser
from flashgen.expr.language.scope import INDICES, Scope
from flashgen.expr.prove import rounding
from flashgen.spec import Spec

PARAMS = {"c": 5.0, "e": -0.75}
SCOPE = Scope(dict.fromkeys(PARAMS, "float"), {}, {**INDICES, "s": "float"})


def read(text):
    return fold(Parser(SCOPE, text, None).read("float"))


def off(node, s, tanh):
    """The value with tanh and sigmoid off by so much of tanh, a different part of it for each s."""
    match node:
        case Call("tanh", (x,)):
            return np.tanh(off(x, s, tanh)) * (1 + tanh)
        case Call("sigmoid", (x,)):
            return 0.5 * np.tanh(0.5 * off(x, s, tanh)) * (1 + tanh) + 0.5
        case Call("float", (x,)):
            return off(x, s, tanh)
        case Call(op, args):
            return row(op).numpy(*(off(x, s, tanh) for x in args))
    return {"s": s, **PARAMS}.get(getattr(node, "name", ""), getattr(node, "value", None))


def smooth():
    leaf = st.sampled_from(["s", "c", "e", "1.5", "tanh(s)", "sigmoid(s)", "tanh(s / c)"])
    grow = lambda x: st.one_of(  # noqa: E731
        st.builds("({} {} {})".format, x, st.sampled_from("+-*"), x),
        st.builds("{}({})".format, st.sampled_from(["tanh", "sigmoid", "abs", "-"]), x),
        st.builds("({} / (2 + {}))".format, x, st.builds("abs({})".format, x)),
        st.builds("{}({}, {})".format, st.sampled_from(["min", "max"]), x, x),
        st.builds("exp(0.1 * {})".format, x),
        st.builds("log(3 + abs({}))".format, x),
        st.builds("sqrt(1 + abs({}))".format, x),
    )
    return st.recursive(leaf, grow, max_leaves=6)


@given(smooth(), st.sampled_from([2.0**-6, 2.0**-11]))
def test_no_value_is_further_off_than_the_bound(text, tanh):
    node, s = read(text), np.linspace(-rounding.SCORES, rounding.SCORES, 201)
    found = rounding.bound(node, PARAMS, rounding.relative(tanh))
    with np.errstate(all="ignore"):
        exact, low, high = (np.broadcast_to(off(node, s, error), s.shape) for error in (0.0, -tanh, tanh))
    slack = 1e-9 * (1 + np.abs(exact))
    assert (found.low - slack <= exact).all()
    assert (exact <= found.high + slack).all()
    assert (np.abs(low - exact) <= found.error + slack).all()
    assert (np.abs(high - exact) <= found.error + slack).all()


CAPPED = {"score": "softcap * tanh(s / softcap)", "params": {"softcap": 50.0}}
NONE = {"score": "sigmoid(s - log(kv_len))", "softmax": "none"}


@pytest.mark.parametrize(
    ("dtype", "tanh", "given", "way"),
    [
        ("bfloat16", 2.0**-11, CAPPED, "short"),
        ("bfloat16", 2.0**-11, CAPPED | {"params": {"softcap": 1e4}}, "short"),  # of tanh near 0 little is off
        ("bfloat16", 2.0**-11, CAPPED | {"score": "2 * softcap * tanh(s / softcap)"}, "fast"),
        ("float16", 2.0**-11, CAPPED, "fast"),
        ("float16", 2.0**-11, CAPPED | {"params": {"softcap": 0.5}}, "short"),
        ("float16", 2.0**-11, CAPPED | {"params": {"softcap": 1e3}}, "fast"),
        ("float16", 2.0**-11, CAPPED | {"params": {"softcap": 1e6}}, "library"),  # next to which an exponential loses s
        ("float16", 2.0**-16, CAPPED, "short"),
        ("bfloat16", 2.0**-16, NONE, "fast"),  # a small weight is all error
        ("bfloat16", 2.0**-16, {"score": "where(tanh(s) > 0.5, s, 0.0)"}, "fast"),  # next to a step
    ],
)
def test_the_first_form_is_chosen_that_is_no_further_off_than_weights_are_rounded(dtype, tanh, given, way):
    spec = Spec(head_dim=64, dtype=dtype, **given)
    assert rounding.rounding(lower(spec), spec, tanh).way == way
    text = "".join(holes(lower(spec), spec, tanh).score.body.lines)
    assert [name for name, of in {"short": "ptx::tanh(", "fast": "ptx::exp2(", "library": "tanhf("}.items() if of in text] == [way]


def test_a_score_without_them_has_no_form():
    spec = Spec(head_dim=64, dtype="bfloat16", score="exp(s)")
    assert rounding.rounding(lower(spec), spec, 2.0**-11) is None
