"""`output`: what o becomes before it is written, once, where a row is finished."""

from dataclasses import replace

import numpy as np
import pytest

import flashgen
from flashgen.arch import by_name
from flashgen.bench import hostile
from flashgen.emulate import emulate
from flashgen.errors import SpecError
from flashgen.expr import lower
from flashgen.expr.meaning.reference import reference
from flashgen.interpret import interpret
from flashgen.plan import plan
from flashgen.plan.geometry import Sizes
from flashgen.plan.shares import Demands
from flashgen.render import render
from flashgen.spec import Spec, json_schema, loads
from tests.plan.agreement import judge_of
from tests.spec.test_schema import accepts

GATE = {"gate": {"shape": ["b", "q_len", "hq", 24], "dtype": "bfloat16"}}
BIAS = {"bias": {"shape": ["hq", 24], "dtype": "float32"}, "scales": {"shape": ["hq"], "dtype": "float16"}}
GATED = {"output": "o * sigmoid(gate[b, q_idx, h, v_idx])", "tensors": GATE, "mask": "causal"}
MOVED = {"output": "o * scales[h] + bias[h, v_idx]", "tensors": BIAS, "outputs": ["o", "lse"]}
CASES = {
    "wgmma": ("sm_90a", {**GATED, "dtype": "bfloat16", "layout": "bhsd"}),
    "wgmma, float32 o": ("sm_90a", {**MOVED, "dtype": "float16", "out_dtype": "float32", "softmax": "off_by_one"}),
    "wgmma, packed": ("sm_90a", {**GATED, "dtype": "float16", "layout": "thd"}),
    "wgmma, scores as weights": ("sm_90a", {**GATED, "dtype": "float16", "softmax": "none"}),
    "mma_sync": ("sm_80", {**GATED, "dtype": "float16", "outputs": ["o", "lse"]}),
    "standard": ("sm_80", {**MOVED, "dtype": "float16", "mask": "causal", "schedule": "standard"}),
    "float32": ("sm_80", {**GATED, "dtype": "float32"}),
    "shares": ("sm_90a", {**MOVED, "dtype": "bfloat16", "split": 2, "softmax": {"sink": "scales[h]"}}),
    "few rows": ("sm_90a", {**MOVED, "dtype": "float16", "split": 2, "softmax": {"sink": "scales[h]"}}),
    "host": ("host", {**MOVED, "dtype": "bfloat16", "mask": "causal"}),
}
SHAPES = {"few rows": [(2, 3, 420, 4, 2), (1, 2, 0, 4, 2)]}  # a query tile has those of all heads of a group
FAULTS = {  # of who, what is written instead of what
    "wgmma": ("first_column() + column(j))", "column(j))"),
    "mma_sync": ("output_row(q_idx + 16 * m + 8 * r)", "output_row(q_idx + 16 * m)"),
    "float32": ("variant.output_row(row)", "variant.output_row(row + 1)"),
    "few rows": ("variant.output_row(q_idx * p.group + head % p.group)", "variant.output_row(q_idx * p.group)"),
    "standard": ("first_column() + column(j))", "column(j))"),
}


def planned(name):
    arch, keys = CASES[name]
    spec = Spec(head_dim=24, **keys)
    if name not in SHAPES:
        return spec, plan(spec, arch)
    return spec, plan(spec, arch, demand=Demands(spec, by_name(arch)).of(Sizes(*SHAPES[name][0])))


def drawn(name, spec, kinds=("hidden", "axes")):
    for batch, q_len, kv_len, heads, kv_heads in SHAPES.get(name, [(2, 70, 90, 4, 2), (1, 5, 0, 2, 2), (1, 40, 20, 2, 1)]):
        yield hostile.draw(spec, Sizes(batch, q_len, kv_len, heads, kv_heads), kinds, np.random.RandomState(kv_len))


@pytest.mark.parametrize("name", CASES)
def test_values(name):
    spec, chosen = planned(name)
    source = None if name == "host" else render(chosen)
    for q, k, v, values in drawn(name, spec):
        found = interpret(chosen, q, k, v, values) if source is None else emulate(chosen, source, q, k, v, values)
        judge_of(spec, q, k, v, **values)(found)


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_seen(name):
    (spec, chosen), (right, wrong) = planned(name), FAULTS[name]
    source = render(chosen)
    assert right in source.text
    q, k, v, values = next(drawn(name, spec, ()))
    found = emulate(chosen, replace(source, text=source.text.replace(right, wrong)), q, k, v, values)
    with pytest.raises(AssertionError):
        judge_of(spec, q, k, v, **values)(found)


def test_rows_without_keys_go_through_it_and_lse_does_not():
    spec = Spec(head_dim=24, dtype="float32", mask="kv_idx < q_idx", **MOVED)
    plain = Spec(head_dim=24, dtype="float32", mask="kv_idx < q_idx", outputs=["o", "lse"])
    q, k, v, values = next(drawn("host", spec))
    (o, lse), want = reference(spec, q, k, v, **values), reference(plain, q, k, v)
    np.testing.assert_array_equal(lse, want[1])
    np.testing.assert_allclose(o[:, 0], np.broadcast_to(values["bias"], o[:, 0].shape))
    np.testing.assert_allclose(o, want[0] * values["scales"].astype(np.float32)[:, None] + values["bias"], atol=1e-6)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("output: o * s", r"<spec>:3:13: unknown name 's'(.|\n)*output is of a row whose keys are all taken in: it reads o, b, h"),
        ("output: o * kv_idx", r"<spec>:3:13: unknown name 'kv_idx'(.|\n)*keys are all taken in"),
        ("score: s * o", r"<spec>:3:12: unknown name 'o'(.|\n)*output reads it"),
        ("output: o > 2", r"<spec>:3:9: expected a number, this is a condition"),
        ("outputs: [o, o_raw]", r"<spec>:3:10: outputs: o_raw is what o was before `output`, and there is none"),
        ("output: g[v_idx] * o\ntensors: {g: {shape: [63], dtype: float32}}", r"<spec>:4:23: v_idx runs over the 64 columns of o.*63"),
        ("output: o\nparams: {v_idx: 2}", r"<spec>:4:10: params.v_idx: 'v_idx' is a word of the expression language"),
    ],
)
def test_mistakes(keys, message):
    with pytest.raises(SpecError, match=message):
        lower(loads(f"dtype: float16\nhead_dim: 64\n{keys}\n"))


def test_it_is_a_key_like_others():
    spec = Spec(head_dim=64, dtype="float16", output="2 * o")
    assert Spec(**spec.to_json()) == spec
    assert accepts(json_schema(), spec.to_json(), json_schema())
    assert "//   output    2.0 * o" in render(plan(spec, "sm_90a")).text
    x = np.ones((1, 3, 1, 64), np.float16)
    np.testing.assert_array_equal(flashgen.compile(spec, backend="interpreter")(x, x, x), 2 * x)
