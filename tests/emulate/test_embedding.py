"""`norm` and `rotary`: what queries and keys become before they meet, by a kernel of each before the attention."""

from dataclasses import replace

import numpy as np
import pytest

from flashgen.bench import hostile
from flashgen.emulate import emulate
from flashgen.errors import SpecError
from flashgen.expr import lower
from flashgen.expr.meaning.embedding import embedded
from flashgen.expr.meaning.reference import reference
from flashgen.interpret import interpret
from flashgen.plan import plan
from flashgen.plan.geometry import Sizes
from flashgen.render import render
from flashgen.runtime import nvrtc
from flashgen.spec import Spec, json_schema, loads
from tests.plan.agreement import judge_of
from tests.spec.test_schema import accepts

LEARNED = {"wq": {"shape": [24], "dtype": "float32"}, "wk": {"shape": [24], "dtype": "float16"}}
TABLES = {"tq": {"shape": ["b", "q_len", 8], "dtype": "float32"}, "tk": {"shape": ["b", "kv_len", 8], "dtype": "float32"}}
BOTH = {
    "norm": {"eps": 1e-5, "query": "wq", "key": "wk"},
    "rotary": {"kind": "halves", "base": 100.0},
    "tensors": LEARNED,
    "mask": "causal",
}
TURNED = {"rotary": {"kind": "interleaved", "columns": 16, "angles": {"query": "tq", "key": "tk"}}, "tensors": TABLES}
CASES = {
    "wgmma": ("sm_90a", {**BOTH, "dtype": "bfloat16"}),
    "mma_sync": ("sm_80", {**TURNED, "dtype": "float16", "layout": "bhsd"}),
    "packed": ("sm_90a", {**TURNED, "dtype": "float16", "layout": "thd"}),
    "float32": ("sm_80", {**BOTH, "dtype": "float32", "split": "auto"}),
    "pages": ("sm_90a", {"dtype": "bfloat16", "cache": {"page": 16}, "norm": {"of": ["q"]}, "rotary": {**BOTH["rotary"], "of": ["q"]}}),
    "host": ("host", {**BOTH, "dtype": "float16"}),
}
FAULTS = {  # of who, what is written instead of what
    "wgmma": ("row + sequence.kv_len() - sequence.q_len()", "row"),
    "mma_sync": ("i % 2 * DISTANCE", "(1 - i % 2) * DISTANCE"),
    "packed": ("<= token) batch = middle", "< token) batch = middle"),
}


def drawn(spec, kinds=("hidden", "axes")):
    for batch, q_len, kv_len in ((2, 30, 48), (1, 5, 0)):
        yield hostile.draw(spec, Sizes(batch, q_len, kv_len, 4, 2, page=spec.page or 1), kinds, np.random.RandomState(kv_len))


@pytest.mark.parametrize("name", CASES)
def test_values(name):
    arch, keys = CASES[name]
    spec = Spec(head_dim=24, outputs=["o", "lse"], **keys)
    chosen = plan(spec, arch)
    source = None if arch == "host" else render(chosen)
    for q, k, v, values in drawn(spec):
        found = interpret(chosen, q, k, v, values) if source is None else emulate(chosen, source, q, k, v, values)
        judge_of(spec, q, k, v, **values)(found)


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_seen(name):
    arch, keys = CASES[name]
    spec = Spec(head_dim=24, outputs=["o", "lse"], **keys)
    chosen, (right, wrong) = plan(spec, arch), FAULTS[name]
    source = render(chosen)
    assert right in source.text
    q, k, v, values = next(drawn(spec, ()))
    found = emulate(chosen, replace(source, text=source.text.replace(right, wrong)), q, k, v, values)
    with pytest.raises(AssertionError):
        judge_of(spec, q, k, v, **values)(found)


def test_scores_follow_the_distance_alone():
    spec = Spec(head_dim=24, dtype="float32", rotary={"kind": "interleaved", "base": 10.0})
    x = np.random.RandomState(0).standard_normal((1, 24)).repeat(9, 0)
    q, k = (embedded(spec, role, x, np.arange(9), {"q_len": 9, "kv_len": 9}) for role in ("q", "k"))
    s = q @ k.T
    np.testing.assert_allclose(s[1:, 1:], s[:-1, :-1], atol=1e-5)
    assert not np.allclose(s[0, 1:], s[0, :-1])


def test_it_is_that_of_plain_attention_on_what_a_user_turned():
    spec = Spec(head_dim=24, outputs=["o", "lse"], dtype="float32", **BOTH)
    q, k, v, values = next(drawn(spec, ()))
    turned = []
    for x, w, of_all in ((q, values["wq"], 48 - 30), (k, values["wk"], 0)):
        y = x.astype(np.float64) / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-5) * w.astype(np.float64)
        angle = np.float32(np.arange(x.shape[1]) + of_all)[:, None] * np.float32(100.0 ** (-np.arange(0, 24, 2) / 24))
        cos, sin, half = np.cos(angle)[:, None], np.sin(angle)[:, None], np.concatenate([-y[..., 12:], y[..., :12]], -1)
        turned.append(y * np.concatenate([cos, cos], -1) + half * np.concatenate([sin, sin], -1))  # as libraries write it
    plain = Spec(head_dim=24, dtype="float32", mask="causal")
    found, want = reference(spec, q, k, v, **values), reference(plain, *turned, v)
    for x, y in zip(found, want, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-5)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("rotary: {kind: half, base: 1.0}", r"<spec>:3:16: rotary.kind: expected halves or interleaved"),
        ("rotary: {kind: halves}", r"<spec>:3:9: rotary: it takes its angles from tensors or from a base"),
        ("rotary: {kind: halves, columns: 65, base: 10.0}", r"<spec>:3:33: rotary.columns: 65 columns cannot be turned in pairs"),
        ("rotary: {kind: halves, base: 9.0}\ncache: contiguous", r"<spec>:3:9: rotary.of: keys of a cache are not changed(.|\n)*of: \[q\]"),
        ("rotary: {kind: halves, angles: {query: t}}", r"<spec>:3:32: rotary.angles: k is turned, and has no angles"),
        ("rotary: {kind: halves, angles: {query: t}, of: [q]}", r"<spec>:3:40: rotary.angles.query: 't' is no tensor"),
        ("norm: {of: [q], key: w}", r"<spec>:3:22: norm.key: it is of k, and `of` has no k"),
        ("norm: {query: w}\ntensors: {w: {shape: [63], dtype: float32}}", r"<spec>:3:15: norm.query: w has shape \[63\](.|\n)*\[64\]"),
        ("norm: {eps: -1.0}", r"<spec>:3:13: norm.eps: expected 0 or more"),
    ],
)
def test_mistakes(keys, message):
    with pytest.raises(SpecError, match=message):
        lower(loads(f"dtype: float16\nhead_dim: 64\n{keys}\n"))


def test_a_text_compiles():
    spec = Spec(
        head_dim=64,
        dtype="bfloat16",
        output="o * sigmoid(gate[b, q_idx, h, v_idx])",
        norm={},
        rotary={"kind": "halves", "base": 9.0},
        tensors={"gate": {"shape": ["b", "q_len", "hq", 64], "dtype": "float16"}},
        layout="thd",
    )
    pytest.importorskip("cuda.bindings.nvrtc")
    assert nvrtc.compile(render(plan(spec, "sm_90a"))).spill_bytes == 0


def test_they_are_keys_like_others():
    for given in (BOTH, TURNED):
        spec = Spec(head_dim=24, dtype="float16", **given)
        assert Spec(**spec.to_json()) == spec
        assert accepts(json_schema(), spec.to_json(), json_schema())
    chosen = plan(spec, "sm_90a")
    assert [kernel.entry for kernel in chosen.kernels] == ["embed_q", "embed_k", "forward"]
    assert "rotary    of q and k: 16 columns, interleaved, angles of tq and tk" in render(chosen).text
