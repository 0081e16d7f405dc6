"""The greatest score of each row and of each head, as the emitted kernels of every family write them."""

import numpy as np
import pytest

from flashgen.emulate import emulate
from flashgen.expr.meaning.reference import reference_outputs
from flashgen.plan import plan
from flashgen.render import render
from flashgen.spec import Spec
from tests.plan.agreement import arrays, error

FAMILIES = {
    "sm_90a": {},
    "sm_80": {},
    "sm_90a three warpgroups": {"softmax": {"sink": "slopes[h]"}, "block": {"m": 192}},
    "sm_90a any strides": {"layout": "bhsd"},
    "standard": {"schedule": "standard"},
    "two_pass": {"schedule": "two_pass"},
    "keys_outer": {"schedule": {"normalize": "each_step", "outer": "kv"}},
    "float32 sm_90a": {"dtype": "float32"},
    "float32 sm_80": {"dtype": "float32"},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_maxima(family):
    keys = {"head_dim": 64, "dtype": "float16", "mask": "causal & (h < 3)", "score": "s + slopes[h] * (kv_idx - q_idx)", **FAMILIES[family]}
    outputs = ["o", "lse", "max", "max_logit"] if "90" in family else ["o", "max_logit"]
    spec = Spec(**keys, tensors={"slopes": {"shape": ["hq"], "dtype": "float32"}}, outputs=outputs)
    chosen = plan(spec, "sm_80" if "sm_80" in family else "sm_90a", 4 if "strides" in family else 0)
    q, k, v = arrays(spec, 2, 4, 2, 150, 140)
    slopes = np.float32([-0.5, 0.25, 0, 1])
    found = emulate(chosen, render(chosen), q, k, v, {"slopes": slopes})
    known = reference_outputs(spec, q, k, v, slopes=slopes)
    assert list(found) == outputs
    assert np.isneginf(found["max_logit"][3])
    for name, most in (("lse", 1e-3), ("max", 1e-4), ("max_logit", 1e-4)):
        assert name not in outputs or error(found[name], known[name]) < most, name


def test_without_queries_no_head_has_a_maximum():
    spec = Spec(head_dim=64, dtype="float16", outputs=["o", "max_logit"])
    chosen = plan(spec, "sm_80")
    q, k, v = arrays(spec, 2, 4, 2, 0, 140)
    found = emulate(chosen, render(chosen), q, k, v)
    assert np.isneginf(found["max_logit"]).all()
