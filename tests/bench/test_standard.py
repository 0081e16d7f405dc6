"""Standard attention as array operations, against the reference."""

import numpy as np
import pytest

from flashgen.bench.standard import standard
from flashgen.expr.meaning.reference import reference
from flashgen.spec import Spec
from tests.plan.agreement import arrays, error


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("mask", ["full", "causal"])
def test_standard(mask, dtype):
    spec = Spec(head_dim={"qk": 24, "v": 16}, dtype=dtype, mask=mask)
    q, k, v = arrays(spec, 2, 3, 3, 40, 40)
    hidden = None if mask == "full" else ~np.tri(40, dtype=bool)
    found = standard(np, q, k, v, hidden, np.float32)
    assert found.dtype == q.dtype
    assert error(found, reference(spec, q, k, v)[0]) < (1e-6 if dtype == "float32" else 2e-3)
    exact = standard(np, *(x.astype(np.float64) for x in (q, k, v)), hidden)
    assert error(exact, reference(spec, q, k, v)[0]) < 1e-12
