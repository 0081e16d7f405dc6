"""Norms and rotary embeddings, which kernels before the attention compute, and a word of each kind, on the GPU."""

from typing import Any

import numpy as np
import pytest

import flashgen
from flashgen.bench import hostile
from flashgen.plan.geometry import Sizes
from flashgen.spec import Spec
from tests.gpu.judge import compiled, down, up
from tests.plan.agreement import judge

ROTARY = {"kind": "halves", "base": 10000.0}
LEARNED = {name: {"shape": [64], "dtype": "float32"} for name in ("wq", "wk")}
ANGLES = {name: {"shape": [length, 16], "dtype": "float32"} for name, length in (("aq", "q_len"), ("ak", "kv_len"))}
SAID: dict[str, dict[str, Any]] = {
    "rotary": {"rotary": ROTARY},
    "a norm": {"norm": {"eps": 1e-6, "query": "wq", "key": "wk"}, "tensors": LEARNED},
    "both, of bfloat16": {"dtype": "bfloat16", "norm": {}, "rotary": {"kind": "interleaved", "base": 500000.0}},
    "angles of some columns": {
        "rotary": {"kind": "interleaved", "columns": 32, "angles": {"query": "aq", "key": "ak"}},
        "tensors": ANGLES,
    },
    "of float32": {"dtype": "float32", "norm": {}, "rotary": ROTARY},
    "queries of a cache": {"cache": {"page": 16}, "rotary": ROTARY | {"of": ["q"]}},
    "packed": {"layout": "thd", "norm": {}, "rotary": ROTARY},
    "weight and output": {
        "weight": "w[b, hk, kv_idx]",
        "output": "o * sigmoid(g[b, q_idx, h, v_idx])",
        "tensors": {
            "w": {"shape": ["b", "hk", "kv_len"], "dtype": "float32"},
            "g": {"shape": ["b", "q_len", "hq", 64], "dtype": "float16"},
        },
    },
}


@pytest.fixture(scope="module")
def attentions() -> dict[str, Any]:
    specs = [Spec(**{"head_dim": 64, "dtype": "float16", "mask": "causal", "outputs": ["o", "lse"], **said}) for said in SAID.values()]
    return dict(zip(SAID, compiled(flashgen.compile, specs), strict=True))


@pytest.mark.parametrize("name", SAID)
def test_is_right_at_any_length(name: str, attentions: dict[str, Any]) -> None:
    """Also where the same kernels serve lengths that grow, as memory of the call before is taken again."""
    spec = attentions[name].spec
    for q_len, kv_len in ((300, 400), (1, 17), (33, 200), (513, 513)):
        q, k, v, values = drawn(spec, q_len, kv_len)
        found = attentions[name](*up(q, k, v), **{key: up(x)[0] for key, x in values.items()})
        judge(spec, dict(zip(spec.outputs, down(found), strict=True)), q, k, v, 2e-2, **values)


def drawn(spec: Spec, q_len: int, kv_len: int) -> tuple[Any, Any, Any, dict[str, Any]]:
    kv_len = -(-kv_len // 16) * 16 if spec.page else kv_len
    return hostile.draw(spec, Sizes(2, q_len, kv_len, 4, 2), (), np.random.RandomState(q_len))
