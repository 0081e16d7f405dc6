"""Commands on a spec that has every word of the expressions, and arrays of every dtype."""

import json

import pytest

from flashgen.cli import check as checking

EVERY = """
dtype: bfloat16
head_dim: 64
let: {d: q_idx - kv_idx, near: d < reach}
score: s + sum(i, 2, u[b, h, q_idx, i] * w[h, kv_idx, i]) + t[h, d + kv_len - 1] - where(near, 0.0, log(1.0 + d))
mask: causal & (ids[b, q_idx] == ids[b, kv_idx]) & bit(words[b, q_idx], kv_idx) & seen[b, kv_idx]
weight: g[b, h, kv_idx]
output: o * e[b, q_idx, h, v_idx]
softmax: {sink: "sinks[h]"}
params: {reach: {default: 8, min: 0, max: 65536}}
tensors:
  u: {shape: [b, hq, q_len, rank], dtype: float16}
  w: {shape: [hq, kv_len, rank], dtype: bfloat16}
  t: {shape: [hq, 2 * kv_len - 1], dtype: float32}
  ids: {shape: [b, kv_len], dtype: int64}
  words: {shape: [1, q_len], dtype: int64}
  seen: {shape: [b, kv_len], dtype: uint8}
  g: {shape: [b, hq, kv_len], dtype: float16}
  e: {shape: [b, q_len, hq, 64], dtype: bfloat16}
  sinks: {shape: [hq], dtype: float16}
outputs: [o, lse]
"""


@pytest.fixture
def every(tmp_path):
    path = tmp_path / "every.yaml"
    path.write_text(EVERY)
    return path


@pytest.mark.parametrize("lengths", [(), ("--q-len", 100, "--kv-len", 300), ("--param", "ids=3")])
def test_explain(flashgen, every, lengths):
    ran = flashgen("explain", every, "--arch", "sm_90a", "--json", *lengths)
    assert (ran.code, ran.err) == (0, "")
    assert json.loads(ran.out)["plan"]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("reach=65537", "reach is 65537: the spec allows at least 0 and at most 65536"),
        ("reach=-1", "reach is -1: the spec allows at least 0 and at most 65536"),
        ("reach=1.5", "reach takes an integer"),
        ("rech=1", "did you mean 'reach'?"),
        ("h=-1", "h takes an index from 0 to 65535"),
        (f"ids={10**30}", "ids holds numbers of int64"),
    ],
)
def test_params_that_no_call_may_have(flashgen, every, value, said):
    ran = flashgen("explain", every, "--arch", "sm_90a", "--param", value)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err


def test_show(flashgen, every):
    ran = flashgen("show", every, "--stage", "expr", "--arch", "sm_90a")
    assert (ran.code, ran.err) == (0, "")
    for said in ("// weight: g[b, h, kv_idx]", "// output: o * e[b, q_idx, h, v_idx]", "// sink: sinks[h]", "q_idx - kv_idx < reach"):
        assert said in ran.out
    assert "const const" not in ran.out


def test_check_has_as_many_keys_as_queries_where_an_array_is_read_by_both(flashgen, every, monkeypatch):
    monkeypatch.setattr(checking, "SHAPES", ((1, 60, 33, 1),))
    ran = flashgen("check", every, "--arch", "host", "--json")
    assert (ran.code, ran.err) == (0, "")
    assert all(shape["q_len"] == shape["kv_len"] for shape in json.loads(ran.out)["shapes"])
