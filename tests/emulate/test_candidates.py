"""Candidates that the planner may choose, a few of each spec and architecture, under the race checker; tests/gpu runs all of them."""

import numpy as np
import pytest

from flashgen.emulate import emulate
from flashgen.plan import plan
from flashgen.render import render
from tests.plan.agreement import arrays, judge
from tests.plan.choices import CHOICES, SPECS

STRIDE = 47  # through all candidates: no divisor of how many a tile has


@pytest.mark.parametrize(("name", "arch", "text"), CHOICES[::STRIDE], ids=lambda x: x.replace(" ", "_"))
def test_candidate(name, arch, text):
    spec = SPECS[name]
    chosen = plan(spec, arch, candidate=text)
    q, k, v = arrays(spec, 1, 2, 1, 230, 333)
    values = {"slopes": np.float32([0.25, 0.125])} if spec.tensors else {}
    found = emulate(chosen, render(chosen), q, k, v, values)
    judge(spec, found, q, k, v, **values)
