"""Functions of the language in emitted kernels and in the interpreter, on ordinary and on hostile data; and one that only its row knows."""

import math

import numpy as np
import pytest

from flashgen.bench import hostile
from flashgen.cli.check import check
from flashgen.errors import BackendError
from flashgen.expr.language.bound import rising, spread, steep
from flashgen.expr.language.function import Function, plain
from flashgen.expr.language.functions import FUNCTIONS
from flashgen.expr.language.instructions import Instructions
from flashgen.plan import plan
from flashgen.plan.params import Sizes
from flashgen.render import render
from flashgen.runtime import nvrtc
from flashgen.spec import Spec
from tests.emulate.test_integers import KERNELS, found_by
from tests.plan.agreement import arrays, judge

BIAS = {"bias": {"shape": ["hq", "kv_len"], "dtype": "float32"}}
SCORES = {
    "s * erf(s) + erf(bias[h, kv_idx])": "full",
    "s + sin(s) * cos(bias[h, kv_idx])": "causal",
    "s + (1.0 + s ** 2) ** c - bias[h, kv_idx] ** 3": "full",
    "softplus(s) + softplus(bias[h, kv_idx])": "window(40, 0)",
    "silu(s) - silu(bias[h, kv_idx])": "causal",
    "gelu(s) + gelu(bias[h, kv_idx])": "full",
    "s + round(c * kv_idx) / 8 - int(bias[h, kv_idx]) / 1e3": "kv_idx <= q_idx + int(c * h)",
    "s + int(c * kv_idx + bias[h, 0]) % 7": "int(0.1 * kv_idx) >= round(0.1 * q_idx) - 2.0",
}
CASES = [*((score, *KERNELS[i % 3]) for i, score in enumerate(SCORES)), *((score, "host", "float32") for score in SCORES)]
SIZES = Sizes(batch=1, q_len=70, kv_len=150, heads=2, kv_heads=1)


def spec_of(score, dtype):
    params = {"c": 0.75} if "c *" in score + SCORES[score] or "** c" in score else {}
    return Spec(head_dim=16, dtype=dtype, score=score, mask=SCORES[score], params=params, tensors=BIAS, outputs=["o", "lse"])


@pytest.mark.parametrize(("score", "arch", "dtype"), CASES)
def test_scores(score, arch, dtype):
    spec = spec_of(score, dtype)
    q, k, v = arrays(spec, 1, 2, 1, 70, 150)
    bias = np.random.default_rng(1).standard_normal((2, 150)).astype(np.float32)
    judge(spec, found_by(arch, spec, q, k, v, {"bias": bias}), q, k, v, bias=bias)


@pytest.mark.parametrize(("score", "arch", "dtype"), CASES)
def test_scores_of_hostile_data(score, arch, dtype):
    spec = spec_of(score, dtype)
    for seed in range(2):
        q, k, v, values = hostile.draw(spec, SIZES, ["biases", "hidden"], np.random.RandomState(seed))
        judge(spec, found_by(arch, spec, q, k, v, values), q, k, v, **values)


ASINH = Function(
    name="asinh",
    parameters=("a",),
    takes="floats",
    gives="float",
    python=math.asinh,
    numpy=np.arcsinh,
    definition=np.arcsinh,
    cuda={"float": "asinhf"},
    decided="asinh",
    library=plain,
    fast=plain,
    short=(),
    derivative=("1.0 / sqrt(1.0 + a * a)",),
    interval=rising(math.asinh),
    error=steep(1.0),
    terms=spread(np.arcsinh),
    sign=("never", "never"),
    cost=Instructions(special=2, multiply=20),
    approximate=True,
)


def test_a_function_is_its_row(monkeypatch):
    """One that nothing else knows of is read, planned, interpreted, emulated, checked and compiled."""
    monkeypatch.setitem(FUNCTIONS, "asinh", ASINH)
    spec = Spec(head_dim=16, dtype="float16", score="4.0 * asinh(s) + asinh(0.1 * kv_idx)", mask="causal", outputs=["o", "lse"])
    q, k, v = arrays(spec, 1, 2, 1, 70, 150)
    for arch in ("host", "sm_80", "sm_90a"):
        judge(spec, found_by(arch, spec, q, k, v, {}), q, k, v)
    assert check(spec, "sm_80", emulated=True, seeds=1).passed
    text = render(plan(spec, "sm_90a"))
    assert "asinhf(" in text.text
    try:
        nvrtc.compiler()
    except BackendError as error:
        pytest.skip(str(error))
    assert nvrtc.compile(text).cubin
