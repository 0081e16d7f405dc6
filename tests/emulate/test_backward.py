"""The backward's kernels on the emulator, under its race checker, beside the float64 reference."""

from dataclasses import replace

import numpy as np
import pytest

from flashgen.emulate import emulate_backward
from flashgen.errors import PlanError
from flashgen.plan.backward import plan_backward
from flashgen.render import render
from flashgen.spec import Spec
from tests.plan.gradients import completed, given, judge


def run(spec, arrays, arch="sm_80", copy_bytes=0, seed=0, **values):
    """The gradients, judged."""
    program = plan_backward(spec, arch, copy_bytes)
    found = emulate_backward(program, render(program), arrays, values, seed=seed)
    judge(spec, found, arrays, **values)
    return found


def check(spec, shape, copy_bytes=0, seed=0, arch="sm_80", **values):
    """The same of a call with so many sequences, heads, kv_heads, queries and keys."""
    return run(spec, given(spec, *shape, seed=seed, dlse=True, **values), arch, copy_bytes, seed, **values)


def tensor(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("mask", "dtype", "arch"), [("full", "bfloat16", "sm_90"), ("causal", "float16", "sm_80")])
def test_beside_the_reference(mask, dtype, arch):
    """Several query tiles and key tiles, heads that share keys, sequences; the last tiles are not whole."""
    check(Spec(head_dim={"qk": 32, "v": 16}, dtype=dtype, mask=mask, backward=True), (2, 4, 2, 133, 140), arch=arch)


@pytest.mark.parametrize(("copy_bytes", "head_dim"), [(8, 40), (2, {"qk": 72, "v": 24}), (4, {"qk": 24, "v": 136})])
def test_rows_of_any_alignment(copy_bytes, head_dim):
    check(Spec(head_dim=head_dim, dtype="bfloat16", backward=True), (1, 2, 1, 33, 20), copy_bytes, seed=1)


SMALL = Spec(head_dim=16, dtype="float16", mask="causal", backward=True)


@pytest.mark.parametrize(("q_len", "kv_len"), [(0, 5), (5, 0), (1, 1)])
def test_lengths_of_zero_and_one(q_len, kv_len):
    """Without queries dk and dv are zeros, without keys dq."""
    found = check(SMALL, (1, 1, 1, q_len, kv_len))
    assert all(x.any() == bool(q_len and kv_len) for name, x in found.items() if name == "dv")


def test_a_mask_that_hides_all_at_the_length_that_is_planned_for():
    tensors = {"slopes": {"shape": ["hq"], "dtype": "float32"}}
    said = {"mask": "window(9, 30) & ~(h * 16 <= kv_idx)", "softmax": {"sink": "slopes[h]"}, "tensors": tensors}
    program = plan_backward(Spec(head_dim=256, dtype="float16", backward=True, **said), "sm_80", length=512)
    assert any("times the clocks" in rejected.reason for rejected in program.decision.rejected)


def test_rows_without_keys_give_zeros():
    """Queries that stand before the first key see none; their lse is -inf."""
    found = check(SMALL, (1, 1, 1, 40, 20))
    assert not found["dq"][:, :20].any()
    assert found["dq"][:, 20:].any()


def test_any_strides():
    """Arrays whose last axis is not contiguous, and whose rows go backwards."""
    arrays = given(SMALL, 1, 2, 1, 20, 30)
    views = {name: np.asfortranarray(getattr(arrays, name)) for name in ("q", "k", "v", "o")}
    views["do"] = arrays.do[:, ::-1].copy()[:, ::-1]
    run(SMALL, type(arrays)(lse=arrays.lse, **views), copy_bytes=2)


def test_do_of_any_strides():
    """As a loss gives it: one number for all, columns of a wider array, heads before rows. The same bits as of a copy."""
    arrays = given(SMALL, 2, 2, 1, 20, 30)
    for do in (np.broadcast_to(np.float16(1), arrays.do.shape), arrays.do):
        wide = np.full((*do.shape[:3], 40), np.nan, do.dtype)
        wide[..., 8:24] = do
        views = do, wide[..., 8:24], do.swapaxes(1, 2).copy().swapaxes(1, 2)
        of_copy, *found = (run(SMALL, replace(arrays, do=x), copy_bytes=2) for x in (do.copy(), *views))
        assert all((of_copy[name] == each[name]).all() for each in found for name in each)


@pytest.mark.parametrize(("arch", "head_dim"), [("sm_80", 16), ("sm_90a", 16), ("sm_90a", 136)])
def test_a_low_lse_beside_keys_that_do_not_exist(arch, head_dim):
    """Exponentials of the scores of columns beyond the last key would be infinite relative to it."""
    spec = Spec(head_dim=head_dim, dtype="float16", mask="causal", scale=0.25, backward=True)
    q, k, v = (np.full((1, 20, 1, head_dim), x, np.float16) for x in (8, -8, 1))
    arrays = completed(spec, q, k, v)
    assert (arrays.lse < -120).all()
    run(spec, arrays, arch)


def test_what_a_position_hides_from_all_queries_may_be_anything():
    """Keys and values beside a range of positions are never multiplied, whatever bits they hold."""
    spec = Spec(head_dim=16, dtype="float16", mask="(kv_idx >= 3) & (kv_idx < 9 + h)", backward=True)
    arrays = given(spec, 1, 2, 1, 20, 30)
    for x in (arrays.k, arrays.v):
        x[:, :3] = x[:, 10:] = np.nan
    found = run(spec, arrays)
    assert not found["dk"][:, :3].any()
    assert not found["dv"][:, 10:].any()


def test_gradients_of_tensors_and_params():
    """They depend on nothing, on the head, on rows, on keys, on both, and of what the sink reads."""
    shapes = {"slopes": ["hq"], "bias": [1, "kv_len"], "gate": ["b", "q_len"], "table": [9], "pairs": ["q_len", "kv_len"]}
    reads = ("bias[b, kv_idx]", "gate[b, q_idx]", "table[q_idx - kv_idx]", "pairs[q_idx, kv_idx]")
    spec = Spec(
        head_dim=16,
        dtype="float16",
        mask="causal",
        score="cap * tanh(s / cap) + slopes[h] * (kv_idx - q_idx) / 8 + " + " + ".join(reads),
        softmax={"sink": "2.0 * slopes[h]"},
        params={"cap": {"default": 3.0, "grad": True}},
        tensors={name: {"shape": shape, "dtype": "float32", "grad": True} for name, shape in shapes.items()},
        backward=True,
    )
    values = {"slopes": tensor(4), "bias": tensor(1, 90), "gate": tensor(2, 70), "table": tensor(9), "pairs": tensor(70, 90)}
    check(spec, (2, 4, 2, 70, 90), **values)


@pytest.mark.parametrize("mask", ["causal", "document(ids)"])
def test_deterministic_is_the_same_in_any_order(mask):
    """The blocks of a kernel may run in any order, which the seed draws; 1: as early as copies can arrive."""
    tensors = {"ids": {"shape": ["b", "kv_len"], "dtype": "int32"}} if "ids" in mask else {}
    spec = Spec(head_dim={"qk": 32, "v": 16}, dtype="bfloat16", mask=mask, tensors=tensors, backward=True, deterministic=True)
    values = {name: np.repeat(np.int32([[0, 1, 2]]), 47, axis=1)[:, :140] for name in tensors}
    arrays = given(spec, 1, 4, 2, 140, 140, **values)
    once, again = (run(spec, arrays, seed=seed, **values) for seed in (0, 5))
    assert all((once[name] == again[name]).all() for name in once)


@pytest.mark.parametrize(("q_len", "kv_len", "dtype"), [(200, 190, "int32"), (200, 190, "int64"), (5, 0, "int32")])
def test_rows_of_documents_are_found_before(q_len, kv_len, dtype):
    """By two small kernels: of a key tile the query tiles that hold its documents."""
    tensors = {"ids": {"shape": ["b", "kv_len"], "dtype": dtype}}
    spec = Spec(head_dim=16, dtype="float16", mask="causal & document(ids)", tensors=tensors, backward=True)
    program = plan_backward(spec, "sm_80")
    assert [kernel.entry for kernel in program.kernels][:2] == ["row_extents_seeing_0", "row_ranges_seeing_0"]
    ids = np.sort(np.random.default_rng(0).integers(0, 5, (2, kv_len))).astype(dtype)
    check(spec, (2, 2, 1, q_len, kv_len), ids=ids << (40 if dtype == "int64" else 0))


@pytest.mark.parametrize("head_dim", range(136, 257, 8))
def test_every_wide_head_dim_has_a_tile(head_dim):
    """Their columns are shared by two warps or more, so there are multiples of 32 of them."""
    for deterministic in (False, True):
        spec = Spec(head_dim=head_dim, dtype="float16", backward=True, deterministic=deterministic)
        assert plan_backward(spec, "sm_89").main.tile.qk_columns % 32 == 0


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"dtype": "float32"}, "dtype is float32: gradients of it have no kernel on sm_80 yet; those of float16 and bfloat16 have"),
        ({"head_dim": 264}, "head_dim qk is 264: a backward on sm_80 takes multiples of 8 from 8 to 256"),
        ({"backward": False}, "write backward: true"),
    ],
)
def test_what_is_refused(keys, says):
    with pytest.raises(PlanError, match=says):
        plan_backward(Spec(**({"head_dim": 16, "dtype": "float16", "backward": True} | keys)), "sm_80")


@pytest.mark.parametrize(("score", "softmax"), [("gelu(s)", "none"), ("sqrt(abs(s))", "softmax"), ("2.0 * s", "off_by_one")])
def test_scores(score, softmax):
    """Weights that are scores, a slope that is infinite where s is 0, and one that is the same everywhere."""
    check(Spec(head_dim=16, dtype="bfloat16", score=score, softmax=softmax, mask="window(20, 5)", backward=True), (1, 2, 2, 40, 50))
