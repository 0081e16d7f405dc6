"""float32 on a GPU: errs no more than float32 sums do, whatever the numbers, and what planes do not hold comes out right all the same."""

from typing import Any

import numpy as np
import pytest

import flashgen
from flashgen.expr.meaning.reference import reference
from flashgen.runtime import device
from flashgen.spec import Spec
from tests.gpu.judge import cupy, down, judge, poisoned, up
from tests.plan.agreement import arrays, plain
from tests.plan.operands import ODD, check_errors, scaled

CAUSAL = Spec(head_dim=64, dtype="float32", mask="causal", outputs=["o", "lse"])


HEAD_DIMS = [8, 64, 72, 128, 160, 256, {"qk": 192, "v": 128}, {"qk": 64, "v": 136}]


@pytest.mark.parametrize(
    ("head_dim", "mask"),
    [*((d, "causal") for d in HEAD_DIMS), (64, "full"), (64, "causal & window(70, 0)"), (256, "causal & window(70, 0)")],
)
@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 300), (129, 257), (300, 130)])
def test_forward(head_dim: Any, mask: str, q_len: int, kv_len: int) -> None:
    spec = Spec(head_dim=head_dim, dtype="float32", mask=mask, outputs=["o", "lse"])
    q, k, v = arrays(spec, 2, 4, 2, q_len, kv_len)
    got = down(flashgen.compile(spec)(*up(q, k, v), out=poisoned(spec, q)))
    judge(spec, got, q, k, v)
    assert np.linalg.norm(got[0] - reference(spec, q, k, v)[0]) <= 1e-6 * np.linalg.norm(reference(spec, q, k, v)[0])


@pytest.mark.parametrize("precision", ["ieee", "tf32"])
@pytest.mark.parametrize("head_dim", [64, 128, 256, {"qk": 72, "v": 136}])
def test_by_mma_sync(head_dim: Any, precision: str) -> None:
    """The kernel of every other architecture; that of sm_90 runs on Hopper too."""
    spec = Spec(head_dim=head_dim, dtype="float32", precision=precision, mask="causal", outputs=["o", "lse"])
    q, k, v = arrays(spec, 2, 4, 2, 300, 333)
    arch = "sm_90" if device.current().arch.name == "sm_90a" else None
    o = down(flashgen.compile(spec, arch)(*up(q, k, v), out=poisoned(spec, q)))[0]
    want = reference(spec, q, k, v)[0]
    assert np.linalg.norm(o - want) <= {"ieee": 1e-6, "tf32": 2e-3}[precision] * np.linalg.norm(want)


@pytest.mark.parametrize("out_dtype", ["float16", "bfloat16"])
def test_o_of_another_dtype(out_dtype: str) -> None:
    spec = Spec(head_dim=64, dtype="float32", out_dtype=out_dtype, mask="causal")
    q, k, v = arrays(spec, 2, 4, 2, 300, 333)
    (o,) = down([flashgen.compile(spec)(*up(q, k, v))])
    want = reference(spec, q, k, v)[0]
    assert o.dtype == spec.out_element.numpy
    assert np.linalg.norm(o.astype(np.float64) - want) <= spec.out_element.rounding * np.linalg.norm(want)


def test_tf32() -> None:
    spec = Spec(head_dim=128, dtype="float32", precision="tf32")
    q, k, v = arrays(spec, 2, 4, 2, 300, 400)
    o, want = down([flashgen.compile(spec)(*up(q, k, v))])[0], reference(spec, q, k, v)[0]
    assert 1e-5 < np.linalg.norm(o - want) / np.linalg.norm(want) < 2e-3


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("which", ["q", "k", "v"])
def test_errs_no_more_than_plain_float32(odd: str, which: str) -> None:
    rng = np.random.default_rng(7)
    given = {x: rng.standard_normal((1, n, 4, 64)).astype(np.float32) for x, n in (("q", 300), ("k", 500), ("v", 500))}
    given[which] = scaled(odd, given[which], rng)
    o = down(flashgen.compile(CAUSAL)(*up(*given.values())))[0]
    want, simple = reference(CAUSAL, **given)[0], plain(CAUSAL, **given)
    check_errors(o, simple, want)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_goes_where_it_would(value: float) -> None:
    q, k, v = arrays(CAUSAL, 1, 2, 2, 300, 300)
    k[0, 200, 1, 5] = value
    o = down(flashgen.compile(CAUSAL)(*up(q, k, v)))[0]
    np.testing.assert_allclose(o, plain(CAUSAL, q, k, v), rtol=1e-4, atol=1e-5)


def test_any_strides() -> None:
    cp = cupy()
    x = cp.asarray(np.random.default_rng(0).standard_normal((3, 1, 200, 2, 130)).astype(np.float32))
    q, k, v = x[0, ..., 1:129:2], x[1, :, ::-1, :, ::2][..., :64], x[2, ..., 64:128]
    o = down(flashgen.compile(CAUSAL)(q, k, v))[0]
    want = reference(CAUSAL, *(y.get() for y in (q, k, v)))[0]
    assert np.linalg.norm(o - want) <= 1e-6 * np.linalg.norm(want)


@pytest.mark.parametrize(("b", "q_len", "kv_len"), [(0, 5, 5), (2, 0, 5), (2, 5, 0)])
def test_nothing_is_not_an_error(b: int, q_len: int, kv_len: int) -> None:
    q, k, v = arrays(CAUSAL, b, 4, 2, q_len, kv_len)
    o, lse = down(flashgen.compile(CAUSAL)(*up(q, k, v), out=poisoned(CAUSAL, q)))
    assert o.shape == q.shape
    assert not o.any()
    assert np.isneginf(lse).all()
