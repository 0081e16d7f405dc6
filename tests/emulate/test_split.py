"""float32 through planes of float16, as emitted, under the race checker: as exact as sums of float32 numbers, whatever the numbers."""

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashgen.emulate import EmulationFault, emulate
from flashgen.expr.meaning.reference import reference
from flashgen.plan import plan
from flashgen.plan.search import LENGTHS
from flashgen.render import render
from flashgen.spec import Spec
from tests.emulate.test_forward import ALIBI, IDS, SOFTCAP, call
from tests.plan.agreement import plain
from tests.plan.operands import ODD, check_errors, scaled

SIGMOID = {"softmax": "none", "score": "sigmoid(s)"}
TOP_LEFT = {"mask": "causal_top_left", "softmax": "off_by_one"}
SPECS: list[tuple[str, dict[str, Any]]] = [
    ("sm_90a", {"head_dim": 64, "mask": "causal"}),
    ("sm_90a", {"head_dim": {"qk": 72, "v": 136}, "mask": "causal & window(100, 0)", "softmax": "off_by_one", "layout": "bhsd", **SOFTCAP}),
    ("sm_90a", {"head_dim": 16, "mask": "full", "outputs": ["o"], "precision": "tf32", **SIGMOID}),
    ("sm_86", {"head_dim": {"qk": 136, "v": 64}, "mask": "prefix(70) | window(30, 10)", "stages": 1, **ALIBI}),
]
IN_PLACE: list[tuple[str, dict[str, Any]]] = [
    ("128x128, 3 stages, 8 warps", {"head_dim": 64, "mask": "causal"}),
    ("128x64, 2 stages, 8 warps", {"head_dim": 128, "mask": "document(ids) | prefix(20)", "tensors": IDS}),
    ("64x80, 3 stages, 4 warps", {"head_dim": {"qk": 8, "v": 104}, "mask": "prefix(70) | window(30, 10)", "layout": "bhsd", **ALIBI}),
    ("128x48, 2 stages, 8 warps", {"head_dim": {"qk": 40, "v": 128}, **TOP_LEFT, **SOFTCAP}),
    ("64x16, 2 stages, 4 warps", {"head_dim": {"qk": 128, "v": 16}, "mask": "causal & window(100, 0)"}),
    ("128x96, 3 stages, 8 warps", {"head_dim": 64, "mask": "full", "outputs": ["o"], "precision": "tf32", **SIGMOID}),
    ("64x32, 3 stages, 4 warps", {"head_dim": {"qk": 128, "v": 72}, "mask": "causal", "precision": "tf32"}),
]
ERROR = {"ieee": 2e-6, "tf32": 4e-3}  # of a row, relative to its norm


@functools.cache
def planned(index, copy_bytes=0, in_place=False):
    arch, spec = ("sm_90a", IN_PLACE[index][1]) if in_place else SPECS[index]
    spec = Spec(**{"dtype": "float32", "outputs": ["o", "lse"], **spec})
    candidate = f"{IN_PLACE[index][0]}, split in place" if in_place else None
    chosen = plan(spec, arch, copy_bytes, LENGTHS[0 if in_place else -1], candidate)
    return chosen, render(chosen)


def row_norms(x):
    return np.linalg.norm(np.asarray(x, np.float64), axis=-1)


def allowed(spec, o, q, k, v, values):
    """The norm of a row's error: where scores are large, four times that of attention at once in float32."""
    usual = ERROR[spec.precision] * row_norms(o)
    return np.maximum(usual, 4 * row_norms(plain(spec, q, k, v, **values) - o)) if spec.softmax.normalized else usual


@pytest.mark.parametrize("in_place", [False, True])
@given(data=st.data())
@settings(max_examples=settings().max_examples // 10)
def test_forward(in_place, data):
    index = data.draw(st.integers(0, len(IN_PLACE if in_place else SPECS) - 1), "spec")
    chosen, source = planned(index, in_place=in_place)
    spec = chosen.spec
    (q, k, v), values = call(data, spec)
    found = emulate(
        chosen, source, q, k, v, values, seed=data.draw(st.integers(0, 20), "seed"), blocks=data.draw(st.integers(1, 4), "blocks")
    )
    o, lse = reference(spec, q, k, v, **values)
    assert (row_norms(found["o"] - o) <= allowed(spec, o, q, k, v, values) + 1e-30).all()
    if "lse" in spec.outputs:
        assert (np.isneginf(found["lse"]) == np.isneginf(lse)).all()
        assert (np.abs(found["lse"] - lse)[np.isfinite(lse)] <= ERROR[spec.precision] * (1 + np.abs(lse[np.isfinite(lse)]))).all()


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("which", ["q", "k", "v"])
def test_errs_no_more_than_plain_float32(odd, which, in_place):
    chosen, source = planned(0, in_place=in_place)
    rng = np.random.default_rng(7)
    arrays = {x: rng.standard_normal((1, n, 1, 64)).astype(np.float32) for x, n in (("q", 70), ("k", 150), ("v", 150))}
    arrays[which] = scaled(odd, arrays[which], rng)
    found = emulate(chosen, source, **arrays, checks=False)["o"]
    want, simple = reference(chosen.spec, **arrays)[0], plain(chosen.spec, **arrays)
    check_errors(found, simple, want)


@pytest.mark.parametrize("in_place", [False, True])
@settings(max_examples=settings().max_examples // 10)
@given(st.sampled_from("qk"), st.booleans(), st.integers(-60, 60), st.integers(0, 63), st.integers(0, 39), st.integers(0, 2**30))
def test_a_number_far_above_the_others_of_its_row_leaves_their_scores(in_place, which, cross, power, column, row, seed):
    """The other operand is 0 in its column. `cross`: the whole column, and the whole row, are as large."""
    chosen, source = planned(0, in_place=in_place)
    rng = np.random.default_rng(seed)
    arrays = {x: rng.standard_normal((1, 40, 1, 64)).astype(np.float32) for x in "qkv"}
    other = arrays["k" if which == "q" else "q"]
    other[..., column] = 0
    arrays[which][0, row, 0, column] = 2.0**power
    if cross:
        arrays[which][0, :, 0, column] = 2.0**power
        arrays[which][0, row] *= np.float32(2.0**power)
        other *= np.float32(2.0 ** -max(power, 0) / 8)
    found = emulate(chosen, source, **arrays, checks=False)["o"]
    o = reference(chosen.spec, **arrays)[0]
    assert (row_norms(found - o) <= allowed(chosen.spec, o, *arrays.values(), {})).all()


def test_planes_in_place_are_those_of_the_kernel_before():
    """So what planes err by, up to four times simple attention where logits are 1e4, is the same."""
    chosen, source = planned(0, in_place=True)
    before = plan(chosen.spec, "sm_90a", length=LENGTHS[0], candidate=IN_PLACE[0][0])
    rng = np.random.default_rng(9)
    q, k, v = (rng.standard_normal((1, n, 1, 64)).astype(np.float32) for n in (70, 150, 150))
    k *= 35
    found = emulate(chosen, source, q, k, v, checks=False), emulate(before, render(before), q, k, v, checks=False)
    np.testing.assert_array_equal(found[0]["o"], found[1]["o"])


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_goes_where_it_would(value, in_place):
    """Plain attention takes it there too: the float64 reference has no 0 * inf where float32 has it."""
    chosen, source = planned(0, in_place=in_place)
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


@pytest.mark.parametrize("index", [0, 3])
@pytest.mark.parametrize("kv_len", [0, 20, 200])
def test_query_tiles_without_keys_in_a_row(index, kv_len):
    """One block, so that they follow those with keys, of which more are under way than are split: 3 stages, and 2."""
    chosen, source = planned(index, in_place=True)
    rng, d = np.random.default_rng(5), chosen.spec.head_dim
    q, k, v = (rng.standard_normal((1, n, 1, width)).astype(np.float32) for n, width in ((700, d.qk), (kv_len, d.qk), (kv_len, d.v)))
    for seed in range(3):
        found = emulate(chosen, source, q, k, v, seed=seed, blocks=1)["o"]
        want = reference(chosen.spec, q, k, v)[0]
        assert (row_norms(found - want) <= ERROR["ieee"] * row_norms(want)).all()


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("words + step % 2 * WORDS_BYTES", "words", "race: warp .* `extremes`"),
        ("  ptx::async_proxy_fence();\n  __syncwarp();\n}", "  __syncwarp();\n}", "fence"),
        ("if (earlier > split) return;", "", "deadlock"),
        ("if (!ptx::load_shared(shared + (values ? V_MORE : K_MORE) + 4 * stage)) break;", "", "deadlock"),
    ],
)
def test_what_in_place_needs(right, wrong, message):
    chosen, source = planned(0, in_place=True)
    faulty = dataclasses.replace(source, text=source.text.replace(right, wrong, 1))
    assert faulty.text != source.text
    q, k, v = (np.random.default_rng(0).standard_normal((1, n, 1, 64)).astype(np.float32) for n in (1100, 500, 500))
    with pytest.raises(EmulationFault, match=message):
        emulate(chosen, faulty, q, k, v, blocks=1)


@pytest.mark.parametrize(
    ("kernel", "begin", "barrier", "name"),
    [
        ("split", "void splitters_meet(", "{ __syncthreads(); }\n", "race: warp . reads `extremes of a warp"),
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
