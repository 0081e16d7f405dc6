"""`weight`: a factor of what a key's value counts for, after the softmax; the sums of rows do not know it."""

from dataclasses import replace

import numpy as np
import pytest

import flashgen
from flashgen.bench import hostile
from flashgen.emulate import emulate
from flashgen.errors import PlanError, SpecError
from flashgen.expr import lower
from flashgen.expr.meaning.reference import reference
from flashgen.interpret import interpret
from flashgen.plan import plan
from flashgen.plan.geometry import Sizes
from flashgen.render import render
from flashgen.spec import Spec, json_schema, loads
from tests.plan.agreement import judge_of
from tests.spec.test_schema import accepts

HEAD = {"head_dim": 16, "outputs": ["o", "lse"]}
GATES = {"g": {"shape": ["b", "hk", "kv_len"], "dtype": "float32"}, "r": {"shape": ["hq", "q_len"], "dtype": "float16"}}
WEIGHTS = {
    "of a key": {"weight": "g[b, hk, kv_idx]", "mask": "causal & (kv_idx % 5 != 1)", "tensors": {"g": GATES["g"]}},
    "of a row too": {"weight": "1 - c * r[h, q_idx] * g[b, hk, kv_idx] / (1 + kv_idx)", "tensors": GATES, "params": {"c": 0.5}},
    "with a sink and a bias": {
        "weight": "abs(g[b, hk, kv_idx])",
        "score": "s + g[b, hk, kv_idx]",
        "softmax": "off_by_one",
        "tensors": {"g": GATES["g"]},
    },
    "packed": {"weight": "1 + abs(q_idx - kv_idx)", "layout": "thd"},
    "of scores themselves": {"weight": "g[b, hk, kv_idx]", "softmax": "none", "outputs": ["o"], "tensors": {"g": GATES["g"]}},
}
CASES = [
    ("of a key", "sm_80", "float16"),
    ("of a key", "host", "float32"),
    ("of a row too", "sm_90a", "float32"),
    ("with a sink and a bias", "sm_80", "float32"),
    ("of scores themselves", "sm_80", "float32"),
    ("packed", "sm_80", "float32"),
    ("of a row too", "sm_90a", "bfloat16"),
    ("with a sink and a bias", "sm_90a", "float16"),
    ("of scores themselves", "sm_90a", "bfloat16"),
    ("of scores themselves", "host", "float16"),
]


@pytest.mark.parametrize(("name", "arch", "dtype"), CASES)
def test_values(name, arch, dtype):
    spec = Spec(**HEAD | WEIGHTS[name], dtype=dtype)
    chosen = plan(spec, arch)
    source = None if arch == "host" else render(chosen)
    for q_len, kv_len in ((33, 150), (3, 0)):
        q, k, v, values = hostile.draw(spec, Sizes(2, q_len, kv_len, 2, 1), ["hidden"], np.random.RandomState(kv_len))
        if name == "of a key":
            values["g"][..., 1::5] = np.nan  # of keys that nobody sees
        found = interpret(chosen, q, k, v, values) if source is None else emulate(chosen, source, q, k, v, values)
        judge_of(spec, q, k, v, **values)(found)


def test_a_weight_is_a_factor_of_v_and_leaves_lse_alone():
    spec = Spec(**HEAD, dtype="float32", mask="causal", weight="g[b, hk, kv_idx]", tensors={"g": GATES["g"]})
    plain = Spec(**HEAD, dtype="float32", mask="causal")
    q, k, v, values = hostile.draw(spec, Sizes(1, 9, 9, 2, 1), [], np.random.RandomState(0))
    found, want = reference(spec, q, k, v, **values), reference(plain, q, k, v * values["g"].transpose(0, 2, 1)[..., None])
    np.testing.assert_allclose(found[0], want[0], atol=1e-6)
    np.testing.assert_array_equal(found[1], want[1])


def test_shares_of_keys_take_it_in():
    spec = Spec(**HEAD, dtype="float16", weight="g[b, hk, kv_idx]", tensors={"g": GATES["g"]}, split=2)
    q, k, v, values = hostile.draw(spec, Sizes(1, 1, 600, 2, 1), [], np.random.RandomState(0))
    chosen = plan(spec, "sm_90a")
    assert chosen.combine
    judge_of(spec, q, k, v, **values)(emulate(chosen, render(chosen), q, k, v, values))


def test_weights_of_any_size_stay_in_planes_of_float32():
    spec = Spec(**HEAD, dtype="float32", weight="1.0e9 * g[b, hk, kv_idx]", tensors={"g": GATES["g"]})
    q, k, v, values = hostile.draw(spec, Sizes(1, 20, 90, 2, 1), [], np.random.RandomState(0))
    chosen = plan(spec, "sm_80")
    source, judged = render(chosen), judge_of(spec, q, k, v, **values)
    judged(emulate(chosen, source, q, k, v, values))
    faulty = replace(source, text=source.text.replace("  into_units(s, unit);", ""))
    assert faulty.text != source.text
    with np.errstate(all="ignore"), pytest.raises(AssertionError):
        judged(emulate(chosen, faulty, q, k, v, values))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("weight: s * 2", r"<spec>:3:9: unknown name 's'"),
        ("weight: kv_idx > 2", r"<spec>:3:9: expected a number, this is a condition"),
    ],
)
def test_mistakes(keys, message):
    with pytest.raises(SpecError, match=message):
        lower(loads(f"dtype: float16\nhead_dim: 64\n{keys}\n"))


def test_who_serves_it():
    given = {"head_dim": 64, "weight": "0.5 * kv_idx"}
    for other in ({"schedule": "two_pass"}, {"schedule": "standard"}):
        with pytest.raises(PlanError, match="weight is a factor of keys in kernels of one pass"):
            plan(Spec(**given, **other, dtype="float16"), "sm_90a")
    spec = Spec(**given, dtype="float16")
    assert Spec(**spec.to_json()) == spec
    assert accepts(json_schema(), spec.to_json(), json_schema())
    assert "//   weight    0.5 * kv_idx" in render(plan(spec, "sm_90a")).text
    assert flashgen.compile(spec, backend="interpreter").spec.weight == "0.5 * kv_idx"
