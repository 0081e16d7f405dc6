"""Factors of q.k that something decides inside of are told in the words of the language, and checked by it."""

import re

import pytest

from flashgen.expr import holes, lower
from flashgen.spec import Spec

FACTORS = (
    "floor(c * m)",
    "where(c < m, 2.0, 3.0)",
    "floor(sqrt(m) * c)",
    "where(c / m < 2.0 - c, 2.0, c)",
    "floor(0.3 * (m % 7))",
    "round(c * (m // 2))",
)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("factor", FACTORS)
def test_a_requirement_is_in_the_words_of_the_language(factor, dtype):
    params = {name: value for name, value in {"c": 2.5, "m": 3}.items() if re.search(rf"\b{name}\b", factor)}
    spec = Spec(head_dim=64, dtype=dtype, score=f"tanh(s * {factor})", params=params)
    (found,) = (rule for rule in holes(lower(spec), spec, 2.0**-11, False).requires if factor in rule.text)
    assert found.text.startswith("0 < abs(")
