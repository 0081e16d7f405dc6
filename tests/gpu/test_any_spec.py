"""Any composition of the language, as a kernel on the GPU."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import flashgen
from flashgen.spec import Spec
from tests.gpu.judge import compiled, down, up
from tests.plan.agreement import judge
from tests.plan.any_spec import LOOSE, calls, specs


@settings(max_examples=4)
@given(st.data(), st.lists(specs(step=8), min_size=6, max_size=6))
def test_any_spec_is_right(data: Any, several: list[Spec]) -> None:
    """Several at a time, compiled beside each other."""
    for attention in compiled(flashgen.compile, several):
        spec = attention.spec
        (q, k, v), values = data.draw(calls(spec, 300))
        found = attention(*up(q, k, v), **{name: x if np.ndim(x) == 0 else up(x)[0] for name, x in values.items()})
        found = down(found if isinstance(found, tuple) else (found,))
        judge(spec, dict(zip(spec.outputs, found, strict=True)), q, k, v, LOOSE, **values)
