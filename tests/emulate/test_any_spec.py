"""Any spec, any plan, any shape: what is emitted, under the race checker, against the float64 reference."""

import functools

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from flashgen.emulate import emulate
from flashgen.errors import PlanError
from flashgen.plan import plan
from flashgen.render import render
from flashgen.spec import Spec
from tests.plan import any_spec
from tests.plan.agreement import SCHEDULES, judge

PARAMS = {"cap": 15.0, "n": 24, "left": 40}
TENSORS = {
    "lens": {"shape": ["b"], "dtype": "int32"},
    "ids": {"shape": ["b", "kv_len"], "dtype": "int32"},
    "slopes": {"shape": ["hq"], "dtype": "float32"},
    "seen": {"shape": ["b", "q_len", "kv_len"], "dtype": "bool"},
    "bias": {"shape": ["hq", "q_len", "kv_len"], "dtype": "float32"},
}
NAMED = ["causal", "causal_top_left", "window(left, 0)", "window(9, 30)", "prefix(n)", "chunk(32)", "document(ids)"]
LEAVES = st.sampled_from(
    [
        *NAMED,
        "(kv_idx < lens[b])",
        "(q_idx % 3 != kv_idx % 5)",
        "(h * 16 <= kv_idx)",
        "seen[b, q_idx, kv_idx]",
        "(ids[b, kv_idx] < lens[b])",
    ]
)
MASKS = st.just("full") | LEAVES | st.tuples(LEAVES, st.sampled_from("&|"), LEAVES | LEAVES.map("~{}".format)).map(" ".join)
SCORES = st.sampled_from(
    [
        "s",
        "cap * tanh(s / cap)",
        "s + slopes[h] * (kv_idx - q_idx)",
        "s + bias[h, q_idx, kv_idx]",
        "where(kv_idx < q_idx, s, s / 2)",
        "abs(s) - s * s / 8",
    ]
)
SOFTMAXES = st.sampled_from([None, None, {"sink": "slopes[h]"}, "off_by_one"])
TILES = {"m": st.sampled_from([64, 128, 192]), "n": st.integers(1, 8).map(lambda n: 16 * n)}
PLANS = {
    "block": st.fixed_dictionaries({}, optional=TILES),
    "stages": st.integers(1, 4),
    "schedule": st.sampled_from(list(SCHEDULES.values())),
}


@st.composite
def plans(draw):
    """A plan that exists, and its kernels."""
    columns, optional = st.integers(1, 16).map(lambda n: 8 * n), draw(st.fixed_dictionaries({}, optional=PLANS))
    qk, score, mask, softmax = draw(columns), draw(SCORES), draw(MASKS), draw(SOFTMAXES)
    spec = Spec(
        **optional,
        dtype=draw(st.sampled_from(["float16", "bfloat16"])),
        head_dim={"qk": qk, "v": draw(st.just(qk) | columns | st.sampled_from([160, 256, 272]))},
        layout=draw(st.sampled_from(["bshd", "bhsd"])),
        cache=draw(st.sampled_from([None, None, "contiguous"])),
        score=score,
        mask=mask,
        params=any_spec.read(PARAMS, score, mask),
        tensors=any_spec.read(TENSORS, score, mask, softmax),
        outputs=["o", "lse"],
        softmax=softmax,
    )
    return planned(spec, draw(st.sampled_from(["sm_80", "sm_90a"])))


@functools.cache
def planned(spec, arch):
    try:
        chosen = plan(spec, arch)
    except PlanError:
        reject()
    return chosen, render(chosen)


@given(plans(), st.data())
@settings(max_examples=settings().max_examples // 12)
def test_any_spec(kernels, data):
    chosen, source = kernels
    spec = chosen.spec
    (q, k, v), values = data.draw(any_spec.calls(spec, 300))
    seed, blocks = data.draw(st.integers(0, 20), "seed"), data.draw(st.integers(1, 4), "blocks")
    found = emulate(chosen, source, q, k, v, values, seed=seed, blocks=blocks)
    judge(spec, found, q, k, v, **values)


@pytest.mark.parametrize("dtypes", [["float16", "bfloat16"], ["float32"]], ids="-".join)
@given(arch=st.sampled_from(["sm_80", "sm_90a"]), data=st.data())
@settings(max_examples=4)
def test_any_composition(dtypes, arch, data):
    spec = data.draw(any_spec.specs(dtypes, step=8, words=True))
    chosen, source = planned(spec, arch)
    (q, k, v), values = data.draw(any_spec.calls(spec, 150))
    judge(spec, emulate(chosen, source, q, k, v, values), q, k, v, any_spec.LOOSE, **values)
