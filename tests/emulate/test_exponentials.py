"""Exponentials by multiply-adds, where a plan has some: the function alone, and at the edges of a softmax."""

import re

import numpy as np

from flashgen.emulate import HostKernel, emulate
from flashgen.expr.meaning.reference import reference
from flashgen.plan import plan
from flashgen.render import render
from flashgen.spec import Spec
from tests.emulate.kernels import kernel_text, record
from tests.plan.agreement import arrays, error

SPEC = Spec(
    head_dim=64, dtype="bfloat16", mask="causal & (q_idx > 3)", score="c * tanh(s / c)", params={"c": 20.0}, outputs=["o", "lse", "max"],
    block={"m": 192, "n": 128},
)  # fmt: skip
CHOSEN = plan(SPEC, "sm_90a")
SOURCE = render(CHOSEN)
PARAMS = "const float* x; float* y;"


def test_the_function():
    special = [-np.inf, np.nan, -1e30, -127.0, -126.6, -0.5, 0.5, 0.0, -0.0, 1e-30, 15.0, 126.4]
    x = np.concatenate([np.float32(special), np.linspace(-140, 127, 1012, dtype=np.float32)])
    y = np.zeros(1024, np.float32)
    function = re.search(r"__device__ __forceinline__ float exp2_by_products.*?\n}\n", SOURCE.text, re.DOTALL)[0]
    text = kernel_text(PARAMS, "  p.y[threadIdx.x] = exp2_by_products(p.x[threadIdx.x]);", function)
    HostKernel(text).launch(1, 1024, 0, record(PARAMS, x=x, y=y))
    want = np.exp2(x.astype(np.float64))
    np.testing.assert_array_equal(np.isnan(y), np.isnan(x))
    large = want >= 2.0**-126
    assert np.abs(y[large] / want[large] - 1).max() < 2.0**-13
    assert (y[want < 2.0**-126] <= 2.0**-126).all()
    assert (y[x <= -127.5] == 0).all()


def test_rows_without_keys_and_scores_that_are_not_numbers():
    assert CHOSEN.attention.pipeline.multiplied
    q, k, v = arrays(SPEC, 1, 1, 1, 70, 260)
    q[0, 40], q[0, 50, 0, 0] = np.nan, np.inf
    found, (o, lse) = emulate(CHOSEN, SOURCE, q, k, v), reference(SPEC, q, k, v)
    assert error(found["o"], o) < 2e-2
    assert error(found["lse"], lse) < 1e-3
    assert np.isneginf(found["lse"][..., :4]).all()
    assert np.isnan(found["o"][0, 40]).all()
