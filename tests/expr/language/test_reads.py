"""Expressions read of a spec everything that it declares, and at which indices."""

import pytest

from flashgen.errors import SpecError
from flashgen.expr import lower
from flashgen.spec import loads

SPEC = """\
dtype: float16
head_dim: 64
score: cap * tanh(s / cap) + slopes[h]
mask: causal & window(left, 0) & document(ids)
scale: temperature / d
softmax: {sink: "sinks[h]"}
params:
  cap: 5.0
  left: 3
  temperature: 1.0
  PARAM: 1
tensors:
  slopes: {shape: [hq], dtype: float32}
  ids: {shape: [b, kv_len], dtype: int32}
  sinks: {shape: [hq], dtype: float32}
  TENSOR: {shape: [kv_len], dtype: int32}
"""


@pytest.mark.parametrize(("name", "kind", "line"), [("PARAM", "param", 11), ("TENSOR", "tensor", 16)])
def test_what_no_expression_reads_is_refused_at_its_name(name: str, kind: str, line: int) -> None:
    other = {"PARAM": "TENSOR", "TENSOR": "PARAM"}[name]
    text = "".join(part for part in SPEC.splitlines(keepends=True) if other not in part)
    with pytest.raises(SpecError) as caught:
        lower(loads(text))
    assert caught.value.message == f"no expression reads the {kind} '{name}'"
    assert caught.value.position is not None
    assert (caught.value.position.line, caught.value.position.column) == (line - (name == "TENSOR"), 3)
    assert "leave it out" in caught.value.hint
    lower(loads("".join(part for part in SPEC.splitlines(keepends=True) if "PARAM" not in part and "TENSOR" not in part)))


@pytest.mark.parametrize("name", ["tanh", "where", "causal", "document"])
def test_functions_and_masks_are_no_names(name: str) -> None:
    with pytest.raises(SpecError) as caught:
        lower(loads(f"dtype: float16\nhead_dim: 64\nparams: {{{name}: 1.0}}\n"))
    assert caught.value.message == f"params.{name}: '{name}' is a word of the expression language"
    assert caught.value.position is not None
    assert (caught.value.position.line, caught.value.position.column) == (3, 10)
    assert caught.value.hint == f"for example my_{name}"
