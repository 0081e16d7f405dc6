"""Gradients where o has another dtype than q, k and v: do comes in that dtype, on every kernel and in the interpreter."""

import functools
from dataclasses import replace

import numpy as np
import pytest

from flashgen.bench.lists import some_blocks
from flashgen.emulate import EmulationFault, emulate_backward
from flashgen.expr.meaning.reference import reference
from flashgen.interpret import interpret_backward
from flashgen.plan.backward import plan_backward
from flashgen.plan.geometry import Sizes
from flashgen.render import render
from flashgen.spec import Spec
from tests.emulate.test_backward import tensor
from tests.plan.gradients import given, judge

SINK = {"softmax": {"sink": "x[h]"}, "tensors": {"x": {"shape": ["hq"], "dtype": "float32", "grad": True}}}
GATED = {
    "output": "o * sigmoid(gate[h, v_idx]) * x[h]",
    "tensors": {**SINK["tensors"], "gate": {"shape": ["hq", 40], "dtype": "float32", "grad": True}},
}
FLOAT32, OTHER = {"out_dtype": "float32"}, {"dtype": "float16", "out_dtype": "bfloat16"}
CASES = {  # arch, bytes that rows are aligned to (0: as the kernel likes them best), what the spec says
    "wgmma": ("sm_90a", 0, FLOAT32 | SINK | {"mask": "causal"}),
    "wgmma, 16 bits": ("sm_90a", 0, OTHER | {"mask": "window(90, 20)", "layout": "bhsd"}),
    "wgmma, output": ("sm_90a", 0, FLOAT32 | GATED),
    "wgmma, weights as they are": ("sm_90a", 0, FLOAT32 | {"softmax": "none", "score": "sigmoid(s)"}),
    "wgmma, lists": ("sm_90a", 0, FLOAT32 | {"blocks": {"m": 128, "n": 128, "lists": "idx"}, "mask": "causal"}),
    "wgmma, in turns": ("sm_90a", 0, FLOAT32 | {"deterministic": True, "mask": "causal"}),
    "wgmma, packed": ("sm_90a", 0, FLOAT32 | {"layout": "thd", "mask": "causal"}),
    "two blocks": ("sm_90a", 0, FLOAT32 | SINK | {"head_dim": {"qk": 136, "v": 40}, "mask": "causal"}),
    "two blocks, output": ("sm_90a", 0, OTHER | GATED | {"head_dim": {"qk": 136, "v": 40}, "layout": "thd"}),
    "mma_sync": ("sm_80", 0, FLOAT32 | SINK | {"mask": "causal"}),
    "mma_sync, 8 bytes": ("sm_80", 8, FLOAT32 | {"mask": "causal"}),
    "mma_sync, 4 bytes": ("sm_80", 4, FLOAT32 | {"mask": "causal"}),
    "mma_sync, 2 bytes": ("sm_80", 2, FLOAT32 | GATED),
    "mma_sync, 16 bits": ("sm_89", 4, OTHER | {"layout": "bhsd"}),
    "mma_sync, 16 bits apart": ("sm_89", 2, OTHER | {"softmax": "off_by_one"}),
    "mma_sync, packed": ("sm_80", 0, FLOAT32 | GATED | {"layout": "thd", "mask": "causal"}),
    "mma_sync, in order": ("sm_80", 0, FLOAT32 | {"deterministic": True, "softmax": "none", "score": "silu(s)"}),
    "embedded": ("sm_80", 0, FLOAT32 | {"norm": {"eps": 1.0e-6}, "mask": "causal"}),
}
SHAPES = [(2, 4, 2, 70, 150), (1, 2, 2, 130, 40), (1, 1, 1, 3, 0)]


@functools.cache
def planned(name):
    arch, copy_bytes, said = CASES[name]
    program = plan_backward(Spec(**{"head_dim": {"qk": 24, "v": 40}, "dtype": "bfloat16", "backward": True, **said}), arch, copy_bytes)
    return program, render(program)


def called(spec, shape, seed=0):
    batch, heads, kv_heads, q_len, kv_len = shape
    values = {t.name: tensor(*[{"hq": heads}.get(axis, axis) for axis in t.shape], seed=i) for i, t in enumerate(spec.tensors)}
    if spec.blocks:
        sizes = Sizes(batch=batch, q_len=q_len, kv_len=kv_len, heads=heads, kv_heads=kv_heads)
        values["idx"] = some_blocks(spec, sizes, np.random.RandomState(seed))
    if spec.geometry.packed:
        values |= {"cu_seqlens_q": np.int32([0, q_len // 3, q_len]), "cu_seqlens_k": np.int32([0, kv_len // 2, kv_len])}
        batch = 1
    return given(spec, batch, *shape[1:], seed=seed, dlse=True, **values), values


@pytest.mark.parametrize("name", CASES)
def test_beside_the_reference(name):
    program, source = planned(name)
    rounding = [scratch for scratch in program.scratch if scratch.name == "rounded_do"]
    assert bool(rounding) == (program.spec.output is None)
    for seed, shape in enumerate(SHAPES):
        arrays, values = called(program.spec, shape, seed)
        assert arrays.do.dtype == arrays.o.dtype == program.spec.out_element.numpy
        judge(program.spec, emulate_backward(program, source, arrays, values, seed=seed), arrays, **values)
        judge(program.spec, interpret_backward(plan_backward(program.spec, "host"), arrays, values), arrays, **values)


@pytest.mark.parametrize("arch", ["sm_90a", "sm_80", "host"])
def test_gradients_are_those_of_do_as_it_is_rounded(arch):
    """So values that all keys share, which a gradient of scores takes off again, make no error of the size that they have."""
    spec = Spec(head_dim=16, dtype="bfloat16", out_dtype="float32", backward=True)
    arrays, _ = called(spec, (1, 2, 2, 60, 70))
    v = (arrays.v.astype(np.float32) / 64 + 8).astype(spec.element.numpy)
    arrays = replace(arrays, v=v, o=reference(spec, arrays.q, arrays.k, v)[0].astype(np.float32), dlse=None)
    rounded = replace(arrays, do=arrays.do.astype(spec.element.numpy).astype(np.float32))
    program = plan_backward(spec, arch)
    run = interpret_backward if arch == "host" else lambda program, given: emulate_backward(program, render(program), given)
    found, alike = run(program, arrays), run(program, rounded)
    assert all((found[name] == alike[name]).all() for name in ("dq", "dk", "dv"))
    judge(spec, found, rounded)


def test_what_float16_cannot_hold_is_infinite_there():
    """As where a framework casts o, and casts its gradient back."""
    spec = Spec(head_dim=8, dtype="float16", out_dtype="float32", backward=True)
    arrays, _ = called(spec, (1, 1, 1, 4, 4))
    arrays.do[0, 1, 0, 2] = 1e6
    program = plan_backward(spec, "sm_80")
    for found in (emulate_backward(program, render(program), arrays), interpret_backward(plan_backward(spec, "host"), arrays)):
        assert np.isinf(found["dv"][..., 2].astype(np.float32)).all()
        assert np.isfinite(found["dv"][..., 3].astype(np.float32)).all()


def test_the_same_dtype_changes_nothing():
    plain = {"head_dim": 64, "dtype": "float16", "backward": True}
    for arch in ("sm_80", "sm_90a"):
        assert render(plan_backward(Spec(**plain, out_dtype="float16"), arch)).text == render(plan_backward(Spec(**plain), arch)).text


FAULTS = {  # what is written instead of what
    "a column late": ("column = i % (V_DIM / 8) * 8;\n    if (q_idx", "column = i % (V_DIM / 8) * 8 + 1;\n    if (q_idx"),
    "rows of another head": ("p.given_do, p.given_do_strides, tile.head", "p.given_do, p.given_do_strides, 0"),
    "o of the row before": ("load_columns_of_o(x, o + q_idx *", "load_columns_of_o(x, o + max(q_idx - 1, 0) *"),
    "nobody waits": ("  __syncthreads();                       // what a row needs", "  // what a row needs"),
    "a row too many": (
        "if (q_idx >= tile.sequence.q_len()) break;\n    float x[8];\n    load_columns_of_o",
        "float x[8];\n    load_columns_of_o",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(fault):
    program, source = planned("wgmma")
    right, wrong = FAULTS[fault]
    assert source.text.count(right) == 1
    source, (arrays, values) = replace(source, text=source.text.replace(right, wrong)), called(program.spec, (1, 4, 2, 100, 150))
    with pytest.raises((AssertionError, EmulationFault)):
        judge(program.spec, emulate_backward(program, source, arrays, values), arrays, **values)
