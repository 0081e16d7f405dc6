"""Every schedule as a kernel on the GPU, and the ladder that climbs them."""

from typing import Any

import pytest

import flashgen
from flashgen.ladder import RUNGS, Shape, climb, write
from flashgen.spec import Spec
from tests.emulate.test_schedules import SCHEDULES
from tests.gpu.judge import down, judge, poisoned, up
from tests.plan.agreement import arrays


@pytest.mark.parametrize(("mask", "dtype"), [("full", "float16"), ("causal", "bfloat16"), ("prefix(70) | window(30, 10)", "float16")])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_forward(schedule: str, mask: str, dtype: str) -> None:
    spec = Spec(head_dim=64, dtype=dtype, mask=mask, outputs=["o", "lse"], schedule=SCHEDULES[schedule])
    attention = flashgen.compile(spec)
    for q_len, kv_len in ((1, 1), (129, 257), (300, 130), (515, 515)):
        q, k, v = arrays(spec, 2, 6, 2, q_len, kv_len, seed=q_len)
        judge(spec, down(attention(*up(q, k, v), out=poisoned(spec, q))), q, k, v)


@pytest.mark.parametrize("head_dim", [8, 72, 128, 256, {"qk": 192, "v": 128}])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_head_dims(schedule: str, head_dim: Any) -> None:
    spec = Spec(head_dim=head_dim, dtype="bfloat16", mask="causal", outputs=["o", "lse"], schedule=SCHEDULES[schedule])
    q, k, v = arrays(spec, 1, 4, 2, 200, 333)
    judge(spec, down(flashgen.compile(spec)(*up(q, k, v), out=poisoned(spec, q))), q, k, v)


def test_the_ladder(tmp_path: Any) -> None:
    found = climb(Shape(512, 64, 4, 1, "float16"), [256, 512])
    assert found.on_gpu
    at = found.of(512)
    assert {"arrays", "standard", "fa2"} <= at.keys() <= {rung.name for rung in RUNGS}
    assert all(row.error < 1e-3 and row.milliseconds > 0 for row in found.rows)
    assert at["standard"].memory >= at["standard"].counted["memory"] > 0
    assert at["three_pass"].memory == at["fa2"].memory == 0
    assert at["fa1"].memory >= at["fa1"].counted["memory"]
    assert all(path.stat().st_size > 10000 for path in write(found, tmp_path))
