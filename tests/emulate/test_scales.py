"""Scales next to 0, where a bias beside them is divided by them, or a unit of planes times them is 0; scales next to infinity."""

import numpy as np
import pytest

from flashgen.emulate import emulate
from flashgen.errors import CallError
from flashgen.interpret import interpret
from flashgen.plan import plan
from flashgen.render import render
from flashgen.runtime.arguments import check_values
from flashgen.spec import Spec
from tests.plan.agreement import arrays, judge_of

SLOPES = {"slopes": {"shape": ["hq"], "dtype": "float32"}}
BIAS = {"bias": {"shape": ["kv_len"], "dtype": "float32"}}
SCORES = {"s": {}, "s + slopes[h] * (kv_idx - q_idx)": SLOPES, "s + bias[kv_idx]": BIAS}
NUMBERS = {"slopes": np.float32([0.5, 0.25]), "bias": np.linspace(-4, 4, 90, dtype=np.float32)}


@pytest.mark.parametrize(("arch", "dtype"), [("sm_90a", "bfloat16"), ("sm_80", "float16"), ("sm_90a", "float32")])
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("scale", [1e-45, 1e-38, -1e-40, 1e-30, 6e-20, 1e19, 1e30, 1e38])
def test_extreme_scales(arch: str, dtype: str, score: str, scale: float) -> None:
    chosen = plan(Spec(head_dim=64, dtype=dtype, mask="causal", scale=scale, score=score, tensors=SCORES[score]), arch)
    q, k, v = arrays(chosen.spec, 1, 2, 2, 70, 90)
    values = {name: NUMBERS[name] for name in SCORES[score]}
    judged = judge_of(chosen.spec, q, k, v, **values)
    for found in (emulate(chosen, render(chosen), q, k, v, values), interpret(chosen, q, k, v, values)):
        judged(found)


def test_a_scale_that_a_kernel_divides_by_is_next_to_neither_0_nor_infinity() -> None:
    chosen = plan(Spec(head_dim=64, dtype="float16", scale="m / d", params={"m": 1.0}), "sm_90a")
    assert check_values(chosen, {"m": 1e-17}) == {"m": 1e-17}
    least, most = "5.421011e-20", r"1.8446744e\+19"
    bounds = rf"breaks \(m / 64.0 >= {least}\) & \(m / 64.0 <= {most}\)$"
    for m in (1e-38, 1e30):
        with pytest.raises(CallError, match=rf"^scale is positive by default, and then from {least} to {most}; m = .* {bounds}"):
            check_values(chosen, {"m": m})
