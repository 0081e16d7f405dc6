"""`flashgen.attention` with the words besides mask and score: weight, output, let, norm and rotary."""

import re
from typing import Any

import numpy as np
import pytest

import flashgen
from flashgen import attend
from flashgen.errors import CallError, SpecError
from flashgen.expr.meaning.reference import reference
from flashgen.spec import Spec
from tests.test_api import error, qkv


def drawn(*shape: int) -> Any:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


VALUES = {"w": drawn(1, 2, 24), "gate": drawn(1, 24, 4, 16), "tq": drawn(24, 4), "tk": drawn(24, 4), "wq": drawn(16), "reach": 3}
TENSORS = {
    "w": ["b", "hk", "kv_len"],
    "gate": ["b", "q_len", "hq", 16],
    "tq": ["q_len", 4],
    "tk": ["kv_len", 4],
    "wq": [16],
}
SAID: dict[str, dict[str, Any]] = {
    "weight": {"weight": "w[b, hk, kv_idx]"},
    "output": {"output": "o * sigmoid(gate[b, q_idx, h, v_idx])"},
    "let": {"let": {"d": "abs(q_idx - kv_idx)", "near": "d < reach"}, "mask": "near", "score": "s - 0.1 * d"},
    "rotary": {"rotary": {"kind": "interleaved", "columns": 8, "angles": {"query": "tq", "key": "tk"}}},
    "norm and rotary": {"norm": {"eps": 1e-5, "query": "wq", "of": ["q"]}, "rotary": {"kind": "halves", "base": 10000.0}},
}


def read_by(said: dict[str, Any]) -> dict[str, Any]:
    words = re.findall(r"\w+", repr(said))
    return {name: x for name, x in VALUES.items() if name in words}


@pytest.mark.parametrize("name", SAID)
def test_words_are_those_of_a_spec(name: str) -> None:
    q, k, v = qkv(1, 24, 24)
    values = read_by(SAID[name])
    tensors = {key: {"shape": TENSORS[key], "dtype": "float32"} for key in values if key in TENSORS}
    params = {key: x for key, x in values.items() if key not in TENSORS}
    spec = Spec(**{"head_dim": 16, "dtype": "float32", "mask": "causal", "tensors": tensors, "params": params, **SAID[name]})
    expected = reference(spec, q, k, v, **values)[0]
    assert error(flashgen.attention(q, k, v, **SAID[name], **values), expected) < 1e-5


def test_one_compilation_serves_every_length() -> None:
    attend.compiled.cache_clear()
    for n in (5, 9, 24):
        q, k, v = qkv(1, n, n)
        flashgen.attention(q, k, v, **SAID["rotary"], tq=VALUES["tq"][:n], tk=VALUES["tk"][:n])
    assert attend.compiled.cache_info().misses == 1


@pytest.mark.parametrize(("said", "message"), [
    ({"weight": VALUES["w"]}, "weight is a ndarray: expected an expression as text"),
    ({"rotary": "halves"}, "rotary is a str: expected a mapping"),
    ({"norm": {"query": VALUES["wq"]}}, "norm: Object of type ndarray is no value of a spec"),
    ({"output": "o * x"}, "unknown name 'x'"),
    ({"weight": "s"}, "only score reads s"),
    ({"rotary": {"kind": "halv", "base": 1.0}}, "did you mean 'halves'"),
    ({"let": {"d": "q_idx"}}, "no expression reads the let 'd'"),
    ({"norm": {}, "gate": VALUES["gate"]}, "unknown argument 'gate'"),
])  # fmt: skip
def test_what_is_refused(said: dict[str, Any], message: str) -> None:
    with pytest.raises((CallError, SpecError), match=message):
        flashgen.attention(*qkv(1, 24, 24), **said)
