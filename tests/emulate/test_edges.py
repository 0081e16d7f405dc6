"""Edge values in the emitted kernels: rows that see nothing, scores of any size and sign, maxima that stay."""

import numpy as np
import pytest

from flashgen.bench import hostile
from flashgen.emulate import emulate
from flashgen.expr.meaning.reference import reference
from flashgen.interpret import interpret
from flashgen.plan import plan
from flashgen.plan.geometry import Sizes
from flashgen.render import render
from flashgen.spec import Spec
from tests.plan.agreement import arrays, error, judge_of

BIAS = {"bias": {"shape": ["q_len", "kv_len"], "dtype": "float32"}}


def run(arch, q, k, v, values=None, **keys):
    chosen = plan(Spec(**{"head_dim": 64, "dtype": "float16", "outputs": ["o", "lse"], **keys}), arch)
    return chosen.spec, emulate(chosen, render(chosen), q, k, v, values or {})


@pytest.mark.parametrize(("arch", "schedule"), [("sm_90a", "auto"), ("sm_80", "auto"), ("sm_80", "two_pass")])
def test_a_maximum_that_stays_leaves_everything_as_it_is(arch, schedule):
    """Ten tiles of equal scores of 3796: a factor off by an ulp at each would move lse by 0.002, and weight the keys by their place."""
    q, k = np.zeros((1, 1, 1, 64), np.float16), np.zeros((1, 1280, 1, 64), np.float16)
    q[..., 0], k[..., 0] = 3000, 10.123
    v = np.ascontiguousarray(np.broadcast_to(np.linspace(-1, 1, 1280, dtype=np.float16)[None, :, None, None], k.shape))
    spec, found = run(arch, q, k, v, schedule=schedule)
    o, lse = reference(spec, q, k, v)
    assert error(found["o"], o) < 5e-4
    assert error(found["lse"], lse) < 5e-4


@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
@pytest.mark.parametrize("scale", ["-0.5", "0"])
def test_a_scale_of_any_sign(arch, scale):
    spec = Spec(head_dim=64, dtype="float16")
    q, k, v = arrays(spec, 1, 2, 1, 70, 150)
    spec, found = run(arch, q, k, v, scale=scale, mask="causal")
    o, lse = reference(spec, q, k, v)
    assert error(found["o"], o) < 3e-3
    assert error(found["lse"], lse) < 1e-3


@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
def test_rows_whose_bias_is_minus_infinity(arch):
    spec = Spec(head_dim=64, dtype="float16")
    q, k, v = arrays(spec, 1, 2, 1, 70, 150)
    bias = np.random.default_rng(0).standard_normal((70, 150), np.float32)
    bias[[0, 31, 64, 69]] = -np.inf
    bias[5, :149] = -np.inf
    spec, found = run(arch, q, k, v, {"bias": bias}, score="s + bias[q_idx, kv_idx]", tensors=BIAS)
    o, lse = reference(spec, q, k, v, bias=bias)
    assert error(found["o"], o) < 3e-3
    assert error(found["lse"], lse) < 1e-3
    assert (found["o"][0, [0, 31, 64, 69]] == 0).all()
    assert np.isneginf(found["lse"][0, :, [0, 31, 64, 69]]).all()


@pytest.mark.parametrize("mask", ["kv_idx // 64 == q_idx // 64", "causal & window(50, 0)", "(prefix(30) | window(20, 20)) & (q_idx >= 70)"])
def test_warpgroups_that_see_other_keys_than_their_neighbours(mask):
    """Three to a query tile; of the last one, two have no rows."""
    spec = Spec(head_dim=64, dtype="float16", mask=mask)
    q, k, v = arrays(spec, 1, 2, 1, 450, 470)
    spec, found = run("sm_90a", q, k, v, mask=mask, block={"m": 192, "n": 64})
    o, lse = reference(spec, q, k, v)
    assert error(found["o"], o) < 3e-3
    assert error(found["lse"], lse) < 1e-3


@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
def test_scores_that_are_not_finite(arch):
    """Inputs are finite: the logarithm of what is negative is NaN, of 0 is -inf."""
    q, k = np.zeros((1, 3, 1, 64), np.float16), np.zeros((1, 40, 1, 64), np.float16)
    q[0, :, 0, 0], k[..., 0] = (1, 0, -1), 1
    v = np.ones((1, 40, 1, 64), np.float16)
    spec, found = run(arch, q, k, v, score="log(s)", scale=1)
    o, lse = reference(spec, q, k, v)
    assert error(found["o"], o) < 1e-3
    assert error(found["lse"], lse) < 1e-3


@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
def test_a_tensor_without_elements(arch):
    """As many elements as keys, of which there are none; the range of keys is computed from one all the same."""
    tensors = {"ends": {"shape": ["b", "kv_len"], "dtype": "int32"}}
    q, k = np.ones((1, 3, 1, 64), np.float16), np.zeros((1, 0, 1, 64), np.float16)
    _, found = run(arch, q, k, k, {"ends": np.zeros((1, 0), np.int32)}, mask="kv_idx < ends[b, 0]", tensors=tensors)
    assert (found["o"] == 0).all()
    assert np.isneginf(found["lse"]).all()


@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
def test_values_that_nobody_may_see(arch):
    """In tiles that no row sees they may be anything. In others v has to be finite: a hidden key has weight 0, and 0 * NaN is NaN."""
    spec = Spec(head_dim=64, dtype="float16", mask="kv_idx < lens[b]")
    q, k, v = arrays(spec, 1, 1, 1, 20, 700)
    k[:, 384:], v[:, 384:] = np.nan, np.nan
    tensors, lens = {"lens": {"shape": ["b"], "dtype": "int32"}}, {"lens": np.int32([300])}
    spec, found = run(arch, q, k, v, lens, mask="kv_idx < lens[b]", tensors=tensors)
    assert error(found["o"], reference(spec, q, k, v, **lens)[0]) < 3e-3


@pytest.mark.parametrize(
    ("arch", "keys"),
    [
        ("sm_90a", {"mask": "(q_len // kv_len) >= 1", "layout": "thd"}),
        ("sm_80", {"output": "o + q_len // kv_len + q_idx % (2 * kv_len)", "layout": "thd"}),
        ("sm_80", {"softmax": {"sink": "0.5 * (q_len % kv_len)"}}),
    ],
)
def test_one_divides_where_a_length_is_zero(arch, keys):
    spec = Spec(head_dim=64, dtype="float16", outputs=["o", "lse"], **keys)
    packed = spec.layout == "thd"
    q, k, v, values = hostile.draw(spec, Sizes(2, 9, 7 if packed else 0, 2, 1), [], np.random.RandomState(0))
    if packed:
        values |= {"cu_seqlens_q": np.int32([0, 5, 9]), "cu_seqlens_k": np.int32([0, 0, 7])}
    for found in (interpret(plan(spec, "host"), q, k, v, values), emulate(plan(spec, arch), render(plan(spec, arch)), q, k, v, values)):
        judge_of(spec, q, k, v, **values)(found)
