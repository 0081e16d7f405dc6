"""Divisions of keys by numbers that tiles divide, or do not: every kernel knows where in its tile a key is."""

import numpy as np
import pytest

from flashgen.emulate import emulate_backward
from flashgen.plan.backward import plan_backward
from flashgen.render import render
from flashgen.spec import Spec
from tests.emulate.test_hidden import KERNELS
from tests.emulate.test_integers import found_by
from tests.plan import gradients
from tests.plan.agreement import arrays, judge

LENGTHS = 70, 300
TABLE = {"seen": {"shape": [5, 3], "dtype": "bool"}}
MASKS = {
    "near": "abs(kv_idx % 128 - q_idx % 128) <= 40",
    "table": "seen[kv_idx // 64, q_idx % 3]",
    "rows": "abs(kv_idx % 32 - q_idx % 32) + abs(kv_idx // 64 - q_idx // 32) <= 20",
}
SCORES = "s", "s - 0.5 * (kv_idx // 128) + 0.01 * (kv_idx % 64)"


def said(mask, score):
    """Keys of a spec, and its tensors."""
    read = "seen" in mask
    values = {"seen": np.random.default_rng(1).random((5, 3)) < 0.6}
    return {"mask": mask, "score": score, "tensors": TABLE if read else {}}, values if read else {}


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", MASKS)
def test_forward(kernel, name, score):
    arch, more = KERNELS[kernel]
    parts, values = said(MASKS[name], score)
    spec = Spec(**{"head_dim": 16, "dtype": "bfloat16", **more}, **parts, outputs=["o", "lse"])
    q, k, v = arrays(spec, 1, 2, 1, *LENGTHS)
    judge(spec, found_by(arch, spec, q, k, v, values), q, k, v, **values)


@pytest.mark.parametrize("kernel", [("sm_80", 16), ("sm_90a", 64), ("sm_90a", 136)])
@pytest.mark.parametrize("name", MASKS)
def test_backward(kernel, name):
    arch, head_dim = kernel
    parts, values = said(MASKS[name], "s")
    spec = Spec(head_dim=head_dim, dtype="float16", backward=True, **parts)
    program = plan_backward(spec, arch)
    given = gradients.given(spec, 1, 2, 1, *LENGTHS, seed=0, **values)
    gradients.judge(spec, emulate_backward(program, render(program), given, values), given, **values)
