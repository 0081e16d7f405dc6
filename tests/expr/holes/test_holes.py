"""Holes: what is emitted for the variants in use, and that what is emitted computes the expressions."""

from itertools import zip_longest

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from flashgen.expr import Instructions, evaluate, holes, lower
from flashgen.expr.holes.holes import Read
from flashgen.plan import plan
from flashgen.render import render
from flashgen.spec import Spec
from tests.expr import harness
from tests.expr.errors import bounded
from tests.expr.grammar import CORNER_MASKS, CORNER_SCORES, PARAMS, TENSORS, conditions, declared, floats
from tests.plan.any_spec import read

BATCH = 100  # of expressions compiled together


def emitted(separate=False, **given):
    spec = Spec(head_dim=64, dtype="bfloat16", **given)
    return holes(lower(spec), spec, separate=separate)


def lines(members):
    return [f"{m.type} {m.name} = {m.value};" for m in members]


def test_a_linear_score_has_no_hole():
    found = emitted()
    assert found.score.body is None
    assert (lines(found.uniform), found.score.factor) == (["float factor = p.softmax_scale * 1.442695f;"], "factor")
    assert (lines(found.row), found.mask.body.lines) == (["int end = p.kv_len - kv_begin;"], ("return column < row.end;",))
    assert (found.requires, found.score.text, found.mask.text) == ((), "s", "True")


def test_causal_softcap():
    found = emitted(mask="causal", score="softcap * tanh(s / softcap)", params={"softcap": 50.0})
    assert lines(found.uniform) == [
        "float factor = p.arg_softcap * 1.442695f;",
        "float inner = p.softmax_scale / p.arg_softcap;",
        "int offset = p.kv_len - p.q_len + 1;",
    ]
    assert lines(found.row) == ["int end = min(q_idx + offset, p.kv_len) - kv_begin;"]
    assert (found.score.body.lines, found.mask.body.lines) == (("return ptx::tanh(inner * s);",), ("return column < row.end;",))
    assert [r.text for r in found.requires] == [
        "softcap > 0",
        "0 < abs(softcap * 1.442695) <= 3.4028235e+38",
        "0 < abs(0.125 / softcap) <= 3.4028235e+38",
    ]
    assert evaluate(found.requires[0].node, {"softcap": 50.0})
    assert not evaluate(found.requires[0].node, {"softcap": float("nan")})
    assert found.mask.text == "kv_idx <= q_idx + kv_len - q_len"


ALIBI = {"mask": "causal", "score": "s + slopes[h] * (kv_idx - q_idx)", "tensors": {"slopes": {"shape": ["hq"], "dtype": "float32"}}}


def test_alibi_is_two_multiply_adds():
    found = emitted(**ALIBI)
    assert lines(found.uniform)[0] == "float slope = p.arg_slopes(head);"
    assert lines(found.row)[0] == "float bias = slope * float(kv_begin - q_idx);"
    assert found.score.body.lines == ("return fmaf(p.softmax_scale, s, fmaf(slope, float(column), row.bias));",)
    assert found.score.factor == "1.442695f"
    assert found.score.instructions == Instructions(multiply=2)
    assert (found.score.column_slope, found.score.row_bias) == (None, None)


def test_alibi_separated_is_where_products_begin_and_a_bias_of_rows():
    found = emitted(separate=True, **ALIBI)
    assert lines(found.uniform)[:4] == [
        "float factor = p.softmax_scale * 1.442695f;",
        "float slopes_h = p.arg_slopes(head);",
        "float unit = ptx::maximum(p.softmax_scale, 8.077936e-28f * fabsf(slopes_h));",
        "float slope = slopes_h / unit;",
    ]
    assert found.outputs.of_slopes == "unit"
    assert lines(found.row)[0] == "float bias = slope * float(kv_begin - q_idx);"
    assert found.score.body is None
    assert (found.score.column_slope, found.score.row_bias, found.score.factor) == ("slope", "row.bias", "factor")
    assert found.score.instructions == Instructions(multiply=0.5, other=0.5)  # for both rows: computed and copied


@pytest.mark.parametrize(("score", "column_slope", "row_bias"), [
    ("s + c * (kv_idx - q_idx)", "slope", "row.bias"),
    ("s * 0.5 + slopes[h] * kv_idx", "slope", "row.bias"),
    ("s * temperature + slopes[h] * kv_idx", None, None),  # which may be next to 0, and would divide
    ("s + rows[q_idx]", None, "row.bias"),
    ("s + slopes[h]", None, "bias"),
    ("s + 0.5 * kv_idx - slopes[h] * kv_len", "slope", "row.bias"),
    ("s + slopes[h] * (kv_idx - q_idx) * (q_idx + 1)", None, "row.bias"),  # the slope is not the query tile's
    ("c * tanh(s) + slopes[h] * (kv_idx - q_idx)", None, None),  # an element adds both at once anyway
    ("slopes[h] * s + kv_idx - q_idx", None, "row.bias"),  # the slope may be 0
    ("s + keys[kv_idx] + rows[q_idx]", None, None),
    ("s - slopes[h] * abs(kv_idx - q_idx) + rows[q_idx]", None, None),
    ("s", None, None),
])  # fmt: skip
def test_what_is_separated(score, column_slope, row_bias):
    of = {"slopes": "hq", "rows": "q_len", "keys": "kv_len"}
    tensors = {name: {"shape": [extent], "dtype": "float32"} for name, extent in of.items()}
    params = read({"c": 0.5, "temperature": 2.0}, score)
    found = emitted(separate=True, score=score, tensors=read(tensors, score), params=params)
    assert (found.score.column_slope, found.score.row_bias or found.outputs.settled) == (column_slope, row_bias)
    assert found.score.row_bias is None or column_slope or "kv" in score


def test_window_of_a_param():
    found = emitted(mask="window(w, 0)", params={"w": 127})
    assert "int index = int(min(max((long long)offset_2 - p.arg_w, -1073741824LL), 1073741824LL));" in lines(found.uniform)
    assert lines(found.row)[0] == "int begin = (flag ? 0 : q_idx + index) - kv_begin;"
    assert found.mask.body.lines == ("return (column >= row.begin) & (column < row.end);",)
    assert [r.text for r in found.requires] == ["w >= -1"]


def test_chunk_is_two_bounds():
    found = emitted(mask="chunk(64) & causal")
    assert lines(found.row) == [
        "int index = 64 * floor_div(q_idx + offset, 64);",
        "int begin = row.index - kv_begin;",
        "int end = min(min(row.index + 64, q_idx + offset_2), p.kv_len) - kv_begin;",
    ]
    assert found.mask.body.lines == ("return (column >= row.begin) & (column < row.end);",)


def test_a_remainder_that_is_compared_is_divided_once_a_row():
    found = emitted(mask="causal & ((q_idx - kv_idx) % 4 == 0)")
    assert "int index = floor_mod(q_idx - kv_begin, 4);" in lines(found.row)
    assert found.mask.body.lines == ("return (column < row.end) & (remainder(column, 4) == row.index);",)


def test_a_param_divides_as_a_product():
    found = emitted(mask="kv_idx // n % 2 == 0", params={"n": 64})
    assert "Divisor by_index = Divisor(min(p.arg_n, 1073741824));" in lines(found.uniform)
    assert "int index = by_index.floor_mod(kv_begin);" in lines(found.row)
    assert found.mask.body.lines == ("return (column < row.end) & (remainder(by_index.quotient(column + row.index), 2) == row.index_2);",)


def test_bucketed_bias_reads_a_table():
    found = emitted(score="s + table[min(abs(q_idx - kv_idx) // 8, 31), h]", tensors={"table": {"shape": [32, "hq"], "dtype": "float32"}})
    assert lines(found.uniform) == ["int h = head;"]
    assert lines(found.row) == ["int offset = q_idx - kv_begin;", "int end = p.kv_len - kv_begin;"]
    assert found.score.body.lines == ("return fmaf(p.softmax_scale, s, p.arg_table(min(quotient(abs(row.offset - column), 8), 31), h));",)


def test_a_mask_of_a_tensor_is_read_along_the_keys():
    found = emitted(mask="keep[b, h, q_idx, kv_idx]", tensors={"keep": {"shape": ["b", "hq", "q_len", "kv_len"], "dtype": "bool"}})
    assert "const bool* keep_row = p.arg_keep.address(b, h, min(q_idx, last_query), kv_begin);" in lines(found.row)
    (read,) = found.reads
    assert read == Read("u32", "bool", "arg_keep", "p.arg_keep", "keep_row", row_axis=2, by_row=True, by_sequence=True)
    assert found.mask.body.lines == ("return (column < row.end) & flag_at(at.arg_keep, column);",)
    assert lines(found.uniform)[-1] == "bool paired = p.arg_keep.paired(p.kv_len);"


@pytest.mark.parametrize(("mask", "early"), [
    ("causal & window(n, 0)", ()),
    ("kv_idx < n", ()),
    ("kv_idx == 4", ("at",)),
    ("causal & (kv_idx == 4)", ("at",)),
    ("bit(n, kv_idx)", ("kv_begin",)),
])  # fmt: skip
def test_what_all_rows_of_a_mask_share(mask, early):
    assert emitted(mask=mask, params=read({"n": 3}, mask)).mask.early == early


def test_temperature_of_a_head_is_one_product():
    found = emitted(score="s / temperature[h]", tensors={"temperature": {"shape": ["hq"], "dtype": "float32"}})
    assert lines(found.uniform) == ["float inner = p.softmax_scale / p.arg_temperature(head);"]
    assert (found.score.body.lines, found.score.factor, found.requires) == (("return inner * s;",), "1.442695f", ())


def test_what_moves_to_outer_is_positive():
    assert emitted(score="s * t", params={"t": -1.0}).score.body.lines == ("return inner * s;",)
    assert emitted(score="s / t", params={"t": 2}).score.body is None
    assert emitted(score="-s").score.body is not None
    assert emitted(scale="0-1").score.body is not None
    scaled = [r.text for r in emitted(scale="t / 2", params={"t": 1.0}).requires]
    assert scaled == ["t > 0", "(t / 2.0 >= 5.421011e-20) & (t / 2.0 <= 1.8446744e+19)", "0 < abs(t / 2.0 * 1.442695) <= 3.4028235e+38"]
    assert emitted(score="exp(e) * s / (1 + sqrt(kv_len))", params={"e": -3.0}).score.body is None


def test_what_occurs_twice_is_computed_once():
    found = emitted(score="where(s > 0, tanh(s), 2 * tanh(s))")
    assert found.score.body.lines == (
        "const float x = p.softmax_scale * s;",
        "const float x_2 = ptx::tanh(x);",
        "return x > 0.0f ? x_2 : 2.0f * x_2;",
    )


def test_weights_are_whole():
    found = emitted(separate=True, softmax="none", **ALIBI)
    assert (found.score.column_slope, found.score.row_bias, found.score.body.lines) == (
        None,
        None,
        emitted(softmax="none", **ALIBI).score.body.lines,
    )


def test_text_is_the_same_every_time():
    given = {"mask": "causal & window(w, 0) | prefix(n)", "params": {"w": 5, "n": 7, "e": 0.5}}
    assert emitted(**given, score="e * tanh(s) + e * (kv_idx - q_idx)") == emitted(**given, score="e * tanh(s) + e * (kv_idx - q_idx)")


# ------------------------------------------------------------------------------------------------------------------ run


def spec_of(score, mask):
    return Spec(head_dim=16, dtype="float32", score=score, mask=mask, **declared(score, mask))


def drawn():
    """Pairs of score and mask: the corners, and as many random ones as the profile has examples."""
    found = dict.fromkeys([*zip_longest(CORNER_SCORES, CORNER_MASKS, fillvalue="s")])

    @settings(phases=[Phase.generate], database=None, suppress_health_check=list(HealthCheck))
    @given(floats(3), conditions(3))
    def draw(score, mask):
        found[score, mask] = None

    draw()
    return list(found)


def place(values):
    """The positions of elements [batch, head, query, key], those beyond the ends too."""
    batch, head, query, key = np.ogrid[: harness.EXTENTS["b"], : harness.EXTENTS["hq"], : harness.ROWS, : harness.KEYS]
    lengths = {name: harness.EXTENTS[name] for name in ("q_len", "kv_len")}
    return {**values, **lengths, "b": batch, "h": head, "hk": head // 2, "q_idx": query, "kv_idx": key}


def draw_values(rng):
    values = {p.name: p.default for p in PARAMS}
    for t in TENSORS:
        shape = tuple(harness.EXTENTS.get(x, x) for x in t.shape)
        values[t.name] = rng.integers(0, 9, shape) if t.dtype == "int32" else rng.standard_normal(shape)
        values[t.name] = (values[t.name] > 0 if t.dtype == "bool" else values[t.name]).astype(t.dtype)
    return values


def check(library, number, lowered, values, raw):
    """Compares what a case computes with the expressions; the share of scores that could be compared in value."""
    found, kept = harness.run(library, number, harness.params(values, 0.25), raw)
    at = place(values)
    seen = np.broadcast_to(evaluate(lowered.mask, at), raw.shape) & (at["kv_idx"] < at["kv_len"])
    np.testing.assert_array_equal(kept, seen)
    expected, bound = bounded(lowered.score, {**at, "s": raw.astype(np.float64) * 0.25})
    expected, bound = np.broadcast_to(expected, raw.shape) * np.log2(np.e), np.broadcast_to(bound, raw.shape) * 1.5 + 1e-6
    inside = np.broadcast_to((at["q_idx"] < at["q_len"]) & (at["kv_idx"] < at["kv_len"]), raw.shape)
    # Coefficients of s are added before s is known, so inf - inf may become inf; otherwise what is not finite must agree.
    sure = inside & ~(np.isinf(raw) & np.isnan(expected))
    finite = sure & np.isfinite(expected) & np.isfinite(bound)
    np.testing.assert_array_less(np.abs(found[finite] - expected[finite]), bound[finite])
    np.testing.assert_array_equal(found[sure & np.isnan(expected)], np.nan)
    return finite.mean()


@pytest.mark.parametrize("separate", [False, True], ids=["whole", "separated"])
def test_emitted_text_computes_the_expressions(separate, tmp_path):
    rng = np.random.default_rng(3)
    raw = rng.standard_normal((harness.EXTENTS["b"], harness.EXTENTS["hq"], harness.ROWS, harness.KEYS), np.float32) * 6
    raw[:, :, 1, :3] = np.inf, -np.inf, np.nan
    values, pairs = draw_values(rng), drawn()
    compared = []
    for first in range(0, len(pairs), BATCH):
        specs = [spec_of(*pair) for pair in pairs[first : first + BATCH]]
        lowered = [lower(spec) for spec in specs]
        library = harness.build(tmp_path / f"{first}", [holes(*case, separate=separate) for case in zip(lowered, specs, strict=True)])
        compared += [check(library, number, expressions, values, raw) for number, expressions in enumerate(lowered)]
    assert np.mean(compared) > 0.5


@pytest.mark.parametrize(
    ("score", "between"),
    [
        ("c * tanh(s / c)", True),
        ("5 * tanh(s)", True),
        ("s", False),
        ("c * tanh(s / c) + 0.5 * kv_idx", False),
        ("-5 * tanh(s)", False),
        ("tanh(s) * s", False),
    ],
)
def test_scores_between_minus_one_and_one_in_their_unit(score, between):
    spec = Spec(head_dim=64, dtype="bfloat16", score=score, params={"c": 50.0} if "c *" in score else {})
    assert holes(lower(spec), spec).bounded == between
    assert ("LARGE" in render(plan(spec, "sm_90a")).text) != between
