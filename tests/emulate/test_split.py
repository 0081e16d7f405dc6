"""float32 through planes of float16, as emitted, under the race checker: as exact as sums of float32 numbers, whatever the numbers."""

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashgen.emulate import EmulationFault, emulate
from flashgen.expr.reference import reference
from flashgen.plan import plan
from flashgen.render import render
from flashgen.spec import Spec
from tests.emulate.test_forward import ALIBI, SOFTCAP, call
from tests.plan.agreement import plain
from tests.plan.operands import ODD, check_errors, scaled

SPECS: list[tuple[str, dict[str, Any]]] = [
    ("sm_90a", {"head_dim": 64, "mask": "causal"}),
    ("sm_90a", {"head_dim": {"qk": 72, "v": 136}, "mask": "causal & window(100, 0)", "softmax": "off_by_one", "layout": "bhsd", **SOFTCAP}),
    ("sm_90a", {"head_dim": 16, "mask": "full", "softmax": "none", "score": "sigmoid(s)", "outputs": ["o"], "precision": "tf32"}),
    ("sm_86", {"head_dim": {"qk": 136, "v": 64}, "mask": "prefix(70) | window(30, 10)", "stages": 1, **ALIBI}),
]
ERROR = {"ieee": 2e-6, "tf32": 4e-3}  # of a row, relative to its norm


@functools.cache
def planned(index, copy_bytes=0):
    arch, spec = SPECS[index]
    chosen = plan(Spec(**{"dtype": "float32", "outputs": ["o", "lse"], **spec}), arch, copy_bytes)
    return chosen, render(chosen)


def row_norms(x):
    return np.linalg.norm(np.asarray(x, np.float64), axis=-1)


@given(data=st.data())
@settings(max_examples=settings().max_examples // 10)
def test_forward(data):
    chosen, source = planned(data.draw(st.integers(0, len(SPECS) - 1), "spec"))
    spec = chosen.spec
    (q, k, v), values = call(data, spec)
    found = emulate(
        chosen, source, q, k, v, values, seed=data.draw(st.integers(0, 20), "seed"), blocks=data.draw(st.integers(1, 4), "blocks")
    )
    o, lse = reference(spec, q, k, v, **values)
    assert (row_norms(found["o"] - o) <= ERROR[spec.precision] * row_norms(o) + 1e-30).all()
    if "lse" in spec.outputs:
        assert (np.isneginf(found["lse"]) == np.isneginf(lse)).all()
        assert (np.abs(found["lse"] - lse)[np.isfinite(lse)] <= 2e-6 * (1 + np.abs(lse[np.isfinite(lse)]))).all()


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("which", ["q", "k", "v"])
def test_errs_no_more_than_plain_float32(odd, which):
    chosen, source = planned(0)
    rng = np.random.default_rng(7)
    arrays = {x: rng.standard_normal((1, n, 1, 64)).astype(np.float32) for x, n in (("q", 70), ("k", 150), ("v", 150))}
    arrays[which] = scaled(odd, arrays[which], rng)
    found = emulate(chosen, source, **arrays, checks=False)["o"]
    want, simple = reference(chosen.spec, **arrays)[0], plain(chosen.spec, **arrays)
    check_errors(found, simple, want)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_goes_where_it_would(value):
    """Plain attention takes it there too: the float64 reference has no 0 * inf where float32 has it."""
    chosen, source = planned(0)
    rng = np.random.default_rng(3)
    for which in range(3):
        arrays = [rng.standard_normal((1, 140, 1, 64)).astype(np.float32) for _ in range(3)]
        arrays[which][0, 100, 0, 5] = value
        found = emulate(chosen, source, *arrays, checks=False)
        np.testing.assert_allclose(found["o"], plain(chosen.spec, *arrays), rtol=1e-4, atol=1e-5)


def test_any_strides():
    chosen, source = planned(0, 4)
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((1, 90, 2, 130)).astype(np.float32)[:, ::-1, :, 1:129:2] for _ in range(3))
    found = emulate(chosen, source, q, k, v)["o"]
    want = reference(chosen.spec, q, k, v)[0]
    assert (row_norms(found - want) <= ERROR["ieee"] * row_norms(want)).all()


@pytest.mark.parametrize(
    ("kernel", "begin", "barrier", "name"),
    [
        ("split", "void extremes(", "  __syncthreads();\n", "race: warp . reads `extremes of a warp"),
        ("plain", "struct AttendPlain", "    __syncthreads();\n    scores(s);", "race: warp . reads `K or V"),
    ],
)
def test_reports_name_the_memory_of_kernels_before_and_after(kernel, begin, barrier, name):
    chosen, source = planned(0)
    head, tail = source.text[: source.text.index(begin)], source.text[source.text.index(begin) :]
    faulty = dataclasses.replace(source, text=head + tail.replace(barrier, barrier.replace("__syncthreads();", ""), 1))
    assert faulty.text != source.text
    q, k, v = (np.random.default_rng(0).standard_normal((1, 140, 1, 64)).astype(np.float32) for _ in range(3))
    if kernel == "plain":
        k[0, 100, 0, 5] = np.inf
    with pytest.raises(EmulationFault, match=name):
        emulate(chosen, faulty, q, k, v)
