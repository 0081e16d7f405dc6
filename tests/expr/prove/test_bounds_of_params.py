"""Bounds of params: told at calls, and known to whoever proves something of integers."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flashgen
from flashgen.emulate import emulate
from flashgen.errors import CallError, SpecError
from flashgen.expr import analyse, holes, lower
from flashgen.expr.meaning.reference import reference
from flashgen.expr.tiles.ranges import EMPTY, FULL
from flashgen.plan import plan
from flashgen.render import render
from flashgen.render.header import header
from flashgen.spec import Param, Spec, loads
from tests.expr.masks import LENGTHS, MASKS, PARAMS, TENSORS, TILES, mask_of, true_classes, values
from tests.plan.agreement import arrays, error

HEAD = {"head_dim": 64, "dtype": "float16"}


def bounded(mask, **bounds):
    return Spec(**HEAD, mask=mask, params={"n": {"default": 8, **bounds}})


@given(MASKS, LENGTHS, LENGTHS, TILES, TILES, values(), st.integers(0, 9), st.integers(0, 9))
def test_tiles_are_sound_within_the_bounds(text, q_len, kv_len, block_m, block_n, given_values, below, above):
    params = [Param(name, x := given_values[name], min=x - below, max=x + above) for name in PARAMS]
    try:
        found = analyse(mask_of(text), block_m, block_n, TENSORS, params=params)
    except SpecError:  # a divisor folded to 0, a text too long
        return
    classes, true = found.classes(q_len, kv_len, given_values), true_classes(text, block_m, block_n, q_len, kv_len, given_values)
    assert (true[classes == EMPTY] == EMPTY).all()
    assert (true[classes == FULL] == FULL).all()


def test_what_is_known_of_a_param_is_asked_of_no_call_and_stops_nowhere():
    masks = ("window(n, 0)", "kv_idx // n == q_idx // n", "kv_idx < q_idx + n")
    for mask, rule, stop in zip(masks, ("n >= -1", "n > 0", ""), ("flag ?", "min(", "max("), strict=True):
        free, tight = (lower(spec := bounded(mask, **bounds)) for bounds in ({}, {"min": 1, "max": 64}))
        assert ([r.text for r in free.requires], tight.requires) == ([rule] if rule else [], ())
        texts = [str(holes(e, s).members) for e, s in ((free, bounded(mask)), (tight, spec))]
        assert texts[1].count(stop) < texts[0].count(stop), texts
    assert analyse(lower(spec).mask, 64, 64, params=bounded("chunk(n)", min=1).params).requires == ()


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_kernels_at_both_bounds(arch):
    spec = Spec(
        **HEAD,
        mask="(kv_idx <= q_idx + n) & (kv_idx % m != 0)",
        score="s + table[min(abs(q_idx - kv_idx), m)]",
        params={"n": {"default": 8, "min": -70, "max": 70}, "m": {"default": 3, "min": 1, "max": 4}},
        tensors={"table": {"shape": [5], "dtype": "float32"}},
    )
    q, k, v = arrays(spec, 1, 2, 1, 70, 90)
    chosen = plan(spec, arch)
    source = render(chosen)
    assert "clamp" not in source.text
    for n, m in ((-70, 1), (70, 4)):
        given_values = {"n": n, "m": m, "table": np.arange(5, dtype=np.float32)}
        found, expected = emulate(chosen, source, q, k, v, given_values), reference(spec, q, k, v, **given_values)
        assert error(found["o"], expected[0]) < 2e-3


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ("{default: 8, min: 9}", r"<spec>:3:23: params.n.default: its default is 8, and min is 9"),
        ("{default: 8, min: 9, max: 7}", r"<spec>:3:31: params.n.min: no number is 9 or more and 7 or less\n(.|\n)*min is at most max"),
        ("{default: 8, min: 0, max: 7}", r"<spec>:3:23: params.n.default: its default is 8, and min is 0 and max is 7"),
        ("{default: 8, max: 7.5}", r"<spec>:3:31: params.n.max: 7.5 bounds an integer(.|\n)*write 7,"),
        ("{default: 8, min: 7.1}", r"<spec>:3:31: params.n.min: 7.1 bounds an integer(.|\n)*write 8,"),
        ("{default: 0.1, min: 0.2}", r"<spec>:3:23: params.n.default: its default is 0.1, and min is 0.2\n"),
        ("{default: 8, least: 7}", r"unknown key 'params.n.least'"),
        ("{min: 7}", r"missing key 'params.n.default'"),
        ("{default: 8, min: low}", r"<spec>:3:31: params.n.min: expected a number, got the text 'low'"),
        ("{default: -3, max: -1}", r"<spec>:4:16: the right side of // must be positive"),
    ],
)
def test_mistakes(bounds, message):
    with pytest.raises(SpecError, match=message):
        lower(loads(f"dtype: float16\nhead_dim: 64\nparams: {{n: {bounds}}}\nmask: q_idx // n > 0\n"))


def test_calls_are_held_to_them():
    spec = {**HEAD, "dtype": "float32", "mask": "window(n, 0)", "score": "s * c"}
    spec["params"] = {"n": {"default": 8, "min": 0, "max": 64}, "c": {"default": 1, "min": 0.5} | {"default": 1.5}}
    attention = flashgen.compile(spec, backend="interpreter")
    assert Spec(**attention.spec.to_json()) == attention.spec
    q = np.ones((1, 4, 1, 64), np.float32)
    attention(q, q, q, n=64, c=0.5)
    for values_, message in (
        ({"n": 65}, "n is 65: the spec allows at least 0 and at most 64"),
        ({"c": 0.4}, "c is 0.4: .* at least 0.5$"),
    ):
        with pytest.raises(CallError, match=message):
            attention(q, q, q, **values_)


def test_a_header_tells_them():
    program = plan(bounded("causal & (kv_idx > n)", min=0, max=64))
    assert re.search(r"int arg_n;.*n, 8 by default, at least 0, at most 64", header(program, render(program)))
