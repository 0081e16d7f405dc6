"""A launch of a backward hands to the driver every member of the record, by the names of the program's arguments."""

from typing import Any

import numpy as np
import pytest

from flashgen.plan.backward import plan_backward
from flashgen.plan.geometry import Sizes
from flashgen.plan.params import scalars
from flashgen.runtime import executable, tma
from flashgen.runtime.arrays import Layout, contiguous_strides
from flashgen.runtime.backward import GpuBackward
from flashgen.runtime.executable import BROUGHT, OF_ROLES, ROLES
from flashgen.runtime.lengths import fresh
from flashgen.runtime.results import gradients
from flashgen.spec import Spec

SPEC = Spec(
    head_dim={"qk": 64, "v": 32},
    dtype="bfloat16",
    score="c * s + bias[h, q_idx]",
    mask="causal",
    params={"c": {"default": 5.0, "grad": True}},
    tensors={"bias": {"shape": ["hq", "q_len"], "dtype": "float32", "grad": True}},
    backward=True,
)


@pytest.fixture(autouse=True)
def maps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensor maps that only tell their address and their box."""
    monkeypatch.setattr(tma, "Map", lambda _, box: lambda at: np.array([at, *box] + [0] * 13, np.uint64).tobytes())


def packed(*shape: int, dtype: str = "bfloat16") -> Layout:
    return Layout(shape, contiguous_strides(shape), dtype, 0, 0)


def given(kv_len: int) -> dict[str, Layout]:
    return {
        "q": packed(2, 100, 8, 64),
        "k": packed(2, kv_len, 2, 64),
        "v": packed(2, kv_len, 2, 32),
        "o": packed(2, 100, 8, 32),
        "do": packed(2, 100, 8, 32),
        "lse": packed(2, 8, 100, dtype="float32"),
        "bias": Layout((8, 100), (1, 8), "float32", 0, 0),
    }


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("kv_len", [150, 0])
def test_the_record(arch: str, kv_len: int) -> None:
    backward, layouts, sizes = GpuBackward(SPEC, None), given(kv_len), Sizes(batch=2, q_len=100, kv_len=kv_len, heads=8, kv_heads=2)
    results = gradients(SPEC, layouts)
    assert list(results) == ["dq", "dk", "dv", "grad_bias", "grad_c"]
    program = backward.serving(plan_backward(SPEC, arch).arch, {**layouts, **fresh(results, 0)})
    launched, stand_ins = backward.launched(program, {**layouts, **fresh(results, 0)}, sizes, 0)
    assert stand_ins == ({} if kv_len else {"k": "q", "v": "q", "dk": "dq", "dv": "dq"})
    by_rows = {name: executable.rows_first(x, "bshd") if name in ROLES + OF_ROLES else x for name, x in launched.items()}
    record, writes = executable.fill(program, by_rows, scalars(program, sizes, {"c": 5.0}))
    places = [*launched, *BROUGHT]
    arguments = {a.name: a for a in program.arguments}
    addressed = [a for a in program.arguments if a.kind not in ("scalar", "strides")]
    assert [places[write.at] for write in writes] == [a.of if a.of in places else a.name for a in addressed]
    for name, argument in arguments.items():
        value: Any = record[name]
        if argument.kind == "strides":
            batch, row, head, column = by_rows[argument.of].strides
            assert value.tolist() == (batch, head, row, column)
        elif argument.kind == "sums":
            assert value["strides"].tolist() == [100, 1]
    assert record["arg_c"] == 5.0


def test_rows_that_the_first_plan_does_not_take() -> None:
    """A kernel for their alignment serves."""
    backward, arch, layouts = GpuBackward(SPEC, None), plan_backward(SPEC, "sm_90a").arch, given(150)
    odd = Layout((2, 100, 8, 32), (100 * 288, 288, 36, 1), "bfloat16", 0, 0)
    assert backward.serving(arch, layouts) is plan_backward(SPEC, arch, length=512)
    assert backward.serving(arch, {**layouts, "do": odd}) is plan_backward(SPEC, arch, 8, 512)
