"""An axis of extent 1 under an index of the call serves all of its values alike, in kernels as in the interpreter."""

from typing import Any

import numpy as np
import pytest

from flashgen.emulate import emulate
from flashgen.expr.meaning.reference import reference
from flashgen.interpret import interpret
from flashgen.plan import plan
from flashgen.render import render
from flashgen.spec import Spec
from tests.plan.agreement import arrays, error, judge_of

EXTENTS = {"b": 2, "hq": 4, "hk": 2, "q_len": 70, "kv_len": 90}
TENSORS: dict[str, tuple[list[Any], str]] = {
    "bias": (["b", "hq", "q_len", "kv_len"], "float32"),
    "seen": (["q_len", "kv_len"], "bool"),
    "ids": (["b", "kv_len"], "int32"),
    "lens": (["b"], "int32"),
    "literal": ([90, 2], "float32"),
}
SPEC: dict[str, Any] = {
    "head_dim": 64,
    "mask": "(seen[q_idx, kv_idx] | document(ids)) & (kv_idx < lens[b])",
    "score": "s + bias[b, h, q_idx, kv_idx] * literal[kv_idx, hk]",
    "tensors": {name: {"shape": shape, "dtype": dtype} for name, (shape, dtype) in TENSORS.items()},
}


def drawn(random: Any, name: str) -> Any:
    """A tensor with some axes of extent 1."""
    shape, dtype = TENSORS[name]
    extents = [n if random.random() < 0.5 else 1 for n in (EXTENTS.get(n, n) for n in shape)]
    if dtype == "int32":
        return random.integers(50 if name == "lens" else 0, 90 if name == "lens" else 2, extents).astype(np.int32)
    return random.random(extents) < 0.5 if dtype == "bool" else random.standard_normal(extents).astype(np.float32)


@pytest.mark.parametrize(("arch", "dtype"), [("sm_90a", "bfloat16"), ("sm_80", "float16"), ("sm_90a", "float32")])
def test_axes_of_extent_1(arch: str, dtype: str) -> None:
    chosen = plan(Spec(**SPEC, dtype=dtype), arch)
    source, random = render(chosen), np.random.default_rng(0)
    q, k, v = arrays(chosen.spec, 2, 4, 2, 70, 90)
    for _ in range(6):
        values = {name: drawn(random, name) for name in TENSORS}
        whole = {name: np.broadcast_to(x, [EXTENTS.get(n, n) for n in TENSORS[name][0]]) for name, x in values.items()}
        assert error(reference(chosen.spec, q, k, v, **values)[0], reference(chosen.spec, q, k, v, **whole)[0]) == 0
        judged = judge_of(chosen.spec, q, k, v, **whole)
        for found in (emulate(chosen, source, q, k, v, values), interpret(chosen, q, k, v, values)):
            judged(found)
