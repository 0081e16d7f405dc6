"""Every candidate that the planner may choose obeys the error rule, not only the one it does choose."""

import numpy as np
import pytest

from flashgen.arch import by_name
from flashgen.plan import candidates
from flashgen.runtime import device
from flashgen.runtime.choice import Choice
from flashgen.runtime.gpu import Gpu
from tests.gpu.judge import compiled, down, poisoned, up
from tests.plan.agreement import arrays, judge_of
from tests.plan.choices import SPECS

LENGTHS = [(300, 333), (129, 700), (5, 1)]  # queries, keys
PARTS = 4  # of a spec's candidates, so that processes may share them


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("arch", ["sm_90a", "sm_90", "sm_80"])
@pytest.mark.parametrize("name", SPECS)
def test_all_candidates(name: str, arch: str, part: int) -> None:
    """One part of those of sm_90, whose kernels stand for those of other cards on a Hopper card."""
    mine, spec = device.current().arch.name, SPECS[name]
    if arch != mine and not (arch == "sm_90" and mine == "sm_90a" and part == 0):
        pytest.skip(f"the card is {mine}")
    values = {"slopes": np.float32([0.25, 0.125, 0.5, 0.0625])} if spec.tensors else {}
    kernels = {text: Gpu(spec, by_name(arch), Choice(spec, text)) for text in candidates(spec, arch)[part::PARTS]}
    compiled(lambda gpu: gpu.kernel(by_name(arch)), kernels.values())
    wrong = []
    for q_len, kv_len in LENGTHS:
        q, k, v = arrays(spec, 1, 4, 2, q_len, kv_len)
        judged = judge_of(spec, q, k, v, **values)
        given = tuple(up(q, k, v, *values.values()))
        for text, gpu in kernels.items():
            out = poisoned(spec, given[0])
            gpu(given, out, {})
            try:
                judged(dict(zip(("o", "lse"), down(out), strict=True)))
            except AssertionError:
                wrong.append(f"{text} at {q_len} queries, {kv_len} keys")
    assert not wrong
