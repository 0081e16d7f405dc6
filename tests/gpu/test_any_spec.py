"""Any composition of the language, as a kernel on the GPU."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import flashgen
from flashgen.spec import Spec
from tests.gpu.judge import down, up
from tests.plan.any_spec import calls, judge, specs


@settings(max_examples=25)
@given(specs(step=8), st.data())
def test_any_spec_is_right(spec: Spec, data: Any) -> None:
    (q, k, v), values = data.draw(calls(spec, 300))
    found = flashgen.compile(spec)(*up(q, k, v), **dict(zip(values, up(*values.values()), strict=True)))
    found = down(found if isinstance(found, tuple) else (found,))
    judge(spec, dict(zip(spec.outputs, found, strict=True)), q, k, v, values)
