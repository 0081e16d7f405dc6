"""Axes that are names or expressions: one kernel for every extent, the same values everywhere, and mistakes told at their place."""

import numpy as np
import pytest

import flashgen
from flashgen import attend
from flashgen.emulate import emulate
from flashgen.errors import CallError, SpecError
from flashgen.expr import lower
from flashgen.expr.meaning.reference import reference
from flashgen.interpret import interpret
from flashgen.plan import plan
from flashgen.render import render
from flashgen.spec import Spec, loads
from tests.plan.agreement import arrays, error

HEAD = {"head_dim": 16, "dtype": "float16"}
DISTANCE = {
    "score": "s + table[h, q_idx - kv_idx + kv_len - 1]",
    "tensors": {"table": {"shape": ["hq", "2 * kv_len - 1"], "dtype": "float32"}},
}
NAMED = {
    "score": "s + table[max(q_idx - kv_idx, 0)] + other[kv_idx % 9, h]",
    "mask": "kv_idx < ends[q_idx // 40]",
    "tensors": {
        "table": {"shape": ["n"], "dtype": "float32"},
        "other": {"shape": ["n", 1], "dtype": "float32"},
        "ends": {"shape": ["count"], "dtype": "int32"},
    },
}


def values(spec, kv_len, n, count):
    shapes = {"table": (2, 2 * kv_len - 1) if "ends" not in {t.name for t in spec.tensors} else (n,), "other": (n, 1), "ends": (count,)}
    random = np.random.default_rng(n)
    found = {t.name: random.standard_normal(shapes[t.name]).astype(np.float32) for t in spec.tensors}
    return found | ({"ends": np.int32([50, -3, 2**31 - 1])[:count]} if "ends" in found else {})


@pytest.mark.parametrize(
    ("given", "arch"), [(DISTANCE, "sm_80"), (DISTANCE, "sm_90a"), (NAMED, "sm_90a"), (NAMED, "sm_80"), (NAMED, "host")]
)
def test_one_kernel_serves_every_extent(given, arch):
    spec = Spec(**HEAD, **given)
    chosen = plan(spec, arch)
    source = None if arch == "host" else render(chosen)
    for q_len, kv_len, n, count in ((70, 90, 5, 3), (33, 0, 1, 1), (1, 65, 130, 2)):
        q, k, v = arrays(spec, 1, 2, 1, q_len, kv_len)
        read = values(spec, max(kv_len, 1), n, count)
        found = interpret(chosen, q, k, v, read) if source is None else emulate(chosen, source, q, k, v, read)
        assert error(found["o"], reference(spec, q, k, v, **read)[0]) < 2e-3


def test_an_axis_is_an_expression_with_other_names_and_has_a_gradient():
    table = {"shape": ["2 * n - 1", "hq"], "dtype": "float32", "grad": True}
    tensors = {"table": table, "near": {"shape": ["n"], "dtype": "bool"}}
    given = {"score": "s + table[q_idx - kv_idx + 8, h]", "mask": "near[abs(q_idx - kv_idx)]", "tensors": tensors, "backward": True}
    attention = flashgen.compile({**HEAD, "dtype": "float32", **given}, backend="interpreter")
    q, k, v = (x.astype(np.float32) for x in arrays(attention.spec, 1, 2, 2, 20, 30))
    read = {"table": np.ones((17, 2), np.float32), "near": np.arange(9) < 7}
    o, lse = attention(q, k, v, **read)
    *_, dtable = attention.backward(o, q, k, v, o, lse, **read)
    assert dtable.shape == (17, 2)
    assert np.abs(dtable[2:15]).max() > 0 == np.abs(dtable[:1]).max()
    with pytest.raises(CallError, match=r"table has shape \[16, 2\]: expected \[17, 2\], \[2 \* n - 1, hq\]"):
        attention(q, k, v, **read | {"table": np.ones((16, 2), np.float32)})


def test_calls():
    attention = flashgen.compile({**HEAD, "dtype": "float32", **NAMED}, backend="interpreter")
    q, k, v = arrays(attention.spec, 1, 2, 1, 70, 90)
    read = values(attention.spec, 90, 5, 3)
    attention(q, k, v, **read)
    with pytest.raises(CallError, match=r"other has shape \[6, 1\], \[n, 1\]: n is 6 there, and 5 in table"):
        attention(q, k, v, **read | {"other": np.ones((6, 1), np.float32)})
    with pytest.raises(CallError, match=r"ends has shape \[3, 1\]: expected \[count\]$"):
        attention(q, k, v, **read | {"ends": np.ones((3, 1), np.int32)})


def test_an_axis_that_an_index_runs_over_is_bound_where_it_is_not_one_for_all():
    tensors = {name: {"shape": ["n"], "dtype": "float32"} for name in ("x", "y")}
    spec = {**HEAD, "dtype": "float32", "score": "s + x[kv_idx] + y[kv_idx]", "tensors": tensors}
    attention = flashgen.compile(spec, backend="interpreter")
    q, k, v = arrays(attention.spec, 1, 1, 1, 3, 8)
    one, all_ = np.full(1, 0.5, np.float32), np.linspace(0, 1, 8, dtype=np.float32)
    np.testing.assert_allclose(attention(q, k, v, x=one, y=all_), attention(q, k, v, x=np.full(8, 0.5, np.float32), y=all_), rtol=1e-6)
    with pytest.raises(CallError, match=r"axis 0 is indexed by kv_idx, of which there are 8"):
        attention(q, k, v, x=np.ones(7, np.float32), y=np.ones(7, np.float32))


def test_attention_compiles_once_for_tables_of_any_length():
    attend.compiled.cache_clear()
    for length in range(3, 23):
        q, k, v = arrays(Spec(**HEAD), 1, 2, 1, length, length)
        table = np.random.default_rng(length).standard_normal(2 * length - 1).astype(np.float32)
        flashgen.attention(q, k, v, score="s + table[q_idx - kv_idx + kv_len - 1]", table=table)
    assert attend.compiled.cache_info().misses == 1


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("[kvlen]", r"<spec>:3:28: tensors.t.shape.0: 'kvlen' is no axis\n(.|\n)*did you mean 'kv_len'"),
        ("[2 * kv_len - m]", r"<spec>:3:41: unknown name 'm'(.|\n)*an array binds a name of your own where it is an axis alone"),
        ("[2 * kv_lem]", r"<spec>:3:32: unknown name 'kv_lem'(.|\n)*did you mean 'kv_len'"),
        ("[kv_len / 2]", r"<spec>:3:28: expected an integer, this is a number(.|\n)*divide integers with //"),
        ("[q_len // 0]", r"<spec>:3:37: the right side of // must be positive"),
        ("[c]", r"<spec>:3:28: tensors.t.shape.0: 'c' is a param"),
        ("[out]", r"<spec>:3:28: tensors.t.shape.0: 'out' is kept for an argument of calls"),
        ("[t]", r"<spec>:3:28: tensors.t.shape.0: 't' is a tensor"),
        ("['2 *']", r"<spec>:3:3\d: invalid syntax"),
    ],
)
def test_mistakes(shape, message):
    tensors = f"tensors: {{t: {{shape:      {shape}, dtype: float32}}}}"
    text = f"dtype: float16\nhead_dim: 64\n{tensors}\nscore: s * c + t[q_idx // 2]\nparams: {{c: 1.0}}\n"
    with pytest.raises(SpecError, match=message):
        lower(loads(text))


def test_a_bit_a_query_is_an_expression():
    spec = Spec(**HEAD, mask="bit(t[q_idx // 32], q_idx % 32)", tensors={"t": {"shape": ["q_words"], "dtype": "int32"}})
    assert spec.tensors[0].shape == ("(q_len + 31) // 32",)
    assert Spec(**spec.to_json()) == spec
