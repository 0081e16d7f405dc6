"""Gradients of queries and keys before their norm and rotary embedding, and of the norm's learned columns."""

from dataclasses import replace

import numpy as np
import pytest

import flashgen
from flashgen.emulate import EmulationFault, emulate_backward
from flashgen.errors import SpecError
from flashgen.expr.meaning.reference import reference
from flashgen.expr.meaning.reference_backward import backward
from flashgen.plan.backward import plan_backward
from flashgen.render import render
from flashgen.spec import Spec, loads
from tests.emulate.test_backward import tensor
from tests.emulate.test_packed import alone, ends
from tests.emulate.test_packed_backward import one_by_one, own_part
from tests.plan.gradients import given, judge

LEARNED = {name: {"shape": [24], "dtype": dtype, "grad": True} for name, dtype in (("wq", "float32"), ("wk", "float32"))}
NORM, HALVES = {"eps": 1e-5, "query": "wq", "key": "wk"}, {"kind": "halves", "base": 100.0}
TABLES = {"tq": {"shape": ["b", "q_len", 8], "dtype": "float32"}, "tk": {"shape": ["b", "kv_len", 8], "dtype": "float32"}}
TURNED = {"rotary": {"kind": "interleaved", "columns": 16, "angles": {"query": "tq", "key": "tk"}}, "tensors": TABLES}
CASES = {
    "wgmma": ("sm_90a", {"dtype": "bfloat16", "mask": "causal", "norm": NORM, "rotary": HALVES, "tensors": LEARNED}),
    "mma_sync": ("sm_80", {"dtype": "float16", "layout": "bhsd", **TURNED}),
    "keys": ("sm_90a", {"dtype": "float16", "mask": "causal", "norm": {"of": ["k"]}, "deterministic": True}),
    "two blocks": ("sm_90a", {"dtype": "bfloat16", "mask": "causal", "head_dim": 136, "rotary": {**HALVES, "columns": 40}}),
}


def values_of(spec, sizes):
    return {t.name: tensor(*(sizes[n] if isinstance(n, str) else n for n in t.shape), seed=len(t.name)) for t in spec.tensors}


def drawn(case, shape):
    arch, said = CASES[case]
    spec = Spec(**{"head_dim": 24, "backward": True, **said})
    values = values_of(spec, {"b": shape[0], "q_len": shape[3], "kv_len": shape[4]})
    return plan_backward(spec, arch), given(spec, *shape, dlse=True, **values), values


@pytest.mark.parametrize("case", CASES)
def test_beside_the_reference(case):
    shapes = ((2, 4, 2, 50, 70), (1, 2, 1, 3, 0)) if case == "wgmma" else ((2, 4, 2, 50, 70),)
    for shape in shapes:
        program, arrays, values = drawn(case, shape)
        judge(program.spec, emulate_backward(program, render(program), arrays, values), arrays, **values)


def test_the_interpreter_has_the_same_gradients():
    for case in ("wgmma", "mma_sync"):
        program, arrays, values = drawn(case, (2, 4, 2, 30, 41))
        found = flashgen.compile(program.spec, backend="interpreter").backward(**vars(arrays), **values)
        names = ("dq", "dk", "dv", *(one.name for one in program.spec.with_grad))
        judge(program.spec, dict(zip(names, found, strict=True)), arrays, **values)


def test_packed_sequences():
    spec = Spec(head_dim=24, dtype="float16", mask="causal", layout="thd", backward=True, norm={"eps": 1e-5}, rotary=HALVES)
    lengths = ends([40, 0, 7])
    places, calls, whole, values = one_by_one(spec, lengths, lengths)
    for arch in ("sm_90a", "sm_80"):
        program = plan_backward(spec, arch)
        found = emulate_backward(program, render(program), whole, values | {"cu_seqlens_q": lengths, "cu_seqlens_k": lengths})
        for place, (call, own) in zip(places, calls, strict=True):
            judge(alone(spec), own_part(found, *place), call, **own)


def test_the_reference_beside_finite_differences():
    spec = Spec(head_dim=24, dtype="float32", mask="causal", backward=True, norm=NORM, rotary=HALVES, tensors=LEARNED)
    values, random = {"wq": tensor(24), "wk": tensor(24, seed=1)}, np.random.default_rng(0)
    arrays = given(spec, 1, 2, 1, 5, 6, **values)
    found = backward(spec, arrays.q, arrays.k, arrays.v, arrays.do, **values)
    gradients = {"q": found.q, "k": found.k, **found.values}

    def loss(changed):
        at = {"q": arrays.q, "k": arrays.k, **values} | changed
        o, _ = reference(spec, at.pop("q"), at.pop("k"), arrays.v, **at)
        return (o * arrays.do).sum()

    for name, x in {"q": arrays.q, "k": arrays.k, **values}.items():
        step = random.standard_normal(x.shape).astype(np.float32)
        slope = (loss({name: x + np.float32(0.01) * step}) - loss({name: x - np.float32(0.01) * step})) / 0.02
        assert slope == pytest.approx((gradients[name] * step).sum(), rel=2e-3, abs=1e-4), name


FAULTS = {
    "turned the same way": ("x[2 * i] = left * cos[i] + right * sin[i];", "x[2 * i] = left * cos[i] - right * sin[i];"),
    "nothing along the row": ("x[i] - unit[i] * along", "x[i]"),
    "a token too few": ("min(int(blockIdx.x + 1) * TOKENS", "min(int(blockIdx.x + 1) * TOKENS - 1"),
    "learned columns in the gradient of themselves": ("learned[i] += some ? x[i]", "learned[i] += some ? x[i] * x[i]"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(fault):
    (right, wrong), (program, arrays, values) = FAULTS[fault], drawn("wgmma", (1, 2, 1, 20, 20))
    source = render(program)
    assert right in source.text
    try:
        found = emulate_backward(program, replace(source, text=source.text.replace(right, wrong)), arrays, values)
    except EmulationFault:
        return
    with pytest.raises(AssertionError):
        judge(program.spec, found, arrays, **values)


def test_angles_have_no_gradient():
    text = "dtype: float16\nhead_dim: 64\nbackward: true\nrotary: {kind: halves, angles: {query: t}, of: [q]}\n"
    text += "tensors: {t: {shape: [q_len, 32], dtype: float32, grad: true}}\n"
    with pytest.raises(SpecError, match=r"tensors.t.grad: the gradient is 0 whatever t holds"):
        plan_backward(loads(text))


def test_what_the_kernels_cost_is_told():
    program, *_ = drawn("wgmma", (1, 2, 1, 3, 3))
    told = [why for about, why in program.decision.reasons if about == "embedding"]
    assert len(told) == 2
    assert all("brings its gradient back" in why for why in told)
