"""Infinities and NaN in q, and in k that is seen, count as they do in arithmetic: in the rows that meet them, and in no other."""

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashgen.emulate import emulate
from flashgen.expr.meaning.reference import reference_outputs
from flashgen.interpret import interpret
from flashgen.plan import plan
from flashgen.render import render
from flashgen.spec import Spec
from tests.plan.agreement import arrays

KERNELS = {
    "host": ("host", {"dtype": "float32"}, None),
    "planes, sm_90a": ("sm_90a", {"dtype": "float32"}, None),
    "planes in place": ("sm_90a", {"dtype": "float32", "head_dim": {"qk": 40, "v": 64}}, 1024),
    "planes, sm_80": ("sm_80", {"dtype": "float32"}, None),
    "wgmma": ("sm_90a", {"dtype": "bfloat16"}, None),
    "mma_sync": ("sm_80", {"dtype": "float16"}, None),
}
HEADS, COLUMN = 2, 5
BAD = st.sampled_from([np.inf, -np.inf, np.nan])


@functools.cache
def planned(kernel):
    arch, said, length = KERNELS[kernel]
    spec = Spec(**{"head_dim": 64, "mask": "causal", "outputs": ["o", "lse"], **said})
    chosen = plan(spec, arch, **({"length": length} if length else {}))
    assert chosen.attention.pipeline.in_place == (kernel == "planes in place")
    return chosen, None if arch == "host" else render(chosen)


@pytest.mark.parametrize("kernel", KERNELS)
@given(st.dictionaries(st.tuples(st.sampled_from("qk"), st.integers(0, 149)), BAD, min_size=1, max_size=3), st.sampled_from([-1, 0, 1]))
@settings(max_examples=3)
def test_as_in_arithmetic(kernel, bad, sign):
    """`sign`: of the key's column that meets what is bad in q, where 0 leaves it as it is: scores may all be -inf, which hides all keys."""
    chosen, source = planned(kernel)
    spec = chosen.spec
    given_to = dict(zip("qkv", arrays(spec, 1, HEADS, HEADS, 150, 150, seed=1), strict=True))
    given_to["k"][..., COLUMN] = np.abs(given_to["k"][..., COLUMN]) * sign if sign else given_to["k"][..., COLUMN]
    for (name, row), number in bad.items():
        given_to[name][0, row, 0, COLUMN] = number
    found = interpret(chosen, **given_to) if source is None else emulate(chosen, source, **given_to)
    for name, wanted in reference_outputs(spec, **given_to).items():
        got = found[name].astype(np.float64)
        np.testing.assert_array_equal(np.where(np.isfinite(got), 0, got), np.where(np.isfinite(wanted), 0, wanted), err_msg=name)
        np.testing.assert_allclose(*(np.where(np.isfinite(x), x, 0) for x in (got, wanted)), atol=3e-2, err_msg=name)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_row_whose_scores_are_all_minus_infinity_sees_no_key(kernel):
    chosen, source = planned(kernel)
    q, k, v = arrays(chosen.spec, 1, HEADS, HEADS, 150, 150, seed=1)
    k[..., COLUMN], q[0, 140, 1, COLUMN] = -np.abs(k[..., COLUMN]) - k.dtype.type(0.1), np.inf
    found = interpret(chosen, q, k, v) if source is None else emulate(chosen, source, q, k, v)
    assert not found["o"][0, 140, 1].any()
    assert found["lse"][0, 1, 140] == -np.inf
    assert np.isfinite(found["lse"]).sum() == found["lse"].size - 1
