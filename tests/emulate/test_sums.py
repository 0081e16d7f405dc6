"""Long sums of a score, which kernels have as loops over their terms: of some elements together, or of one."""

import re
from dataclasses import replace

import numpy as np
import pytest

from flashgen.bench import hostile
from flashgen.emulate import emulate, emulate_backward
from flashgen.interpret import interpret, interpret_backward
from flashgen.plan import plan
from flashgen.plan.backward import plan_backward
from flashgen.plan.geometry import Sizes
from flashgen.render import render
from flashgen.spec import Spec
from tests.emulate.test_backward import tensor
from tests.plan.agreement import judge_of
from tests.plan.gradients import given, judge

UNITS = {name: {"shape": [32], "dtype": "float32"} for name in ("a", "r")} | {"w": {"shape": [32, "hq"], "dtype": "float32"}}
NETWORK = {"score": "s + sum(n, 32, w[n, h] * max(a[n] * log(1.0 + 0.1 * abs(q_idx - kv_idx)) + r[n], 0.0))", "tensors": UNITS}
ROWS = {"u": {"shape": ["b", "hq", "q_len", 16], "dtype": "float32"}, "w": {"shape": ["hq", "kv_len", 16], "dtype": "float32"}}
KEYS = {"g": {"shape": ["b", "kv_len"], "dtype": "float32"}}
SPECS = {
    "a network": NETWORK | {"mask": "causal"},
    "of rows and keys": {"score": "s + sum(i, 16, u[b, h, q_idx, i] * w[h, kv_idx, i])", "tensors": ROWS},
    "beside a bias": {"score": NETWORK["score"] + " + 0.1 * g[b, kv_idx]", "tensors": UNITS | KEYS, "mask": "causal"},
    "of s": {"score": "s + sum(n, 20, 0.05 * a[n] * sin(s + r[n]))", "tensors": dict.fromkeys("ar", UNITS["a"])},
    "of more terms than lanes": {
        "score": "s + sum(n, 40, t[n] * cos(0.01 * n * kv_idx))",
        "tensors": {"t": {"shape": ["n"], "dtype": "float32"}},
    },
    "of keys alone": {"score": "s + sum(n, 16, w[h, kv_idx, n] * (n - 7.5))", "tensors": {"w": ROWS["w"]}, "mask": "causal"},
    "two, one in the other": {
        "score": "s + sum(i, 2, c * i * sum(n, 32, a[n] * cos(0.1 * n + kv_idx))) * sum(n, 32, 0.01 * r[n] * max(kv_idx - n, 0))",
        "tensors": {name: UNITS[name] for name in "ar"},
        "params": {"c": 0.1},
    },
    "a weight itself": {
        "score": "max(0.1 * s + sum(n, 32, a[n] * cos(0.1 * n * kv_idx)), 0.0)",
        "tensors": {"a": UNITS["a"]},
        "softmax": "none",
    },
    "packed": NETWORK | {"mask": "causal", "layout": "thd"},
    "step by step": NETWORK | {"schedule": "standard"},
}
CASES = [
    ("a network", "sm_90a", "bfloat16", 64),
    ("a network", "sm_80", "float16", 128),
    ("a network", "sm_90a", "float32", 16),
    ("a network", "sm_80", "float32", 16),
    ("of rows and keys", "sm_90a", "bfloat16", 128),
    ("of rows and keys", "sm_80", "float16", 64),
    ("beside a bias", "sm_90a", "bfloat16", 16),
    ("beside a bias", "sm_80", "bfloat16", 16),
    ("of s", "sm_90a", "float16", 16),
    ("of s", "sm_80", "float16", 16),
    ("of more terms than lanes", "sm_90a", "float16", 16),
    ("of keys alone", "sm_90a", "float16", 16),
    ("of keys alone", "sm_80", "float16", 16),
    ("two, one in the other", "sm_90a", "float16", 16),
    ("a weight itself", "sm_90a", "bfloat16", 16),
    ("packed", "sm_90a", "bfloat16", 16),
    ("packed", "sm_80", "float16", 16),
    ("step by step", "sm_80", "float16", 16),
]


def judged(name, arch, dtype, head_dim, change=lambda text: text):
    spec = Spec(head_dim=head_dim, dtype=dtype, **SPECS[name])
    chosen = plan(spec, arch)
    source = render(chosen)
    source = replace(source, text=change(source.text))
    q, k, v, values = hostile.draw(spec, Sizes(1, 21, 140, 2, 1), [], np.random.RandomState(0))
    judge_of(spec, q, k, v, 1e-2, **values)(emulate(chosen, source, q, k, v, values))


@pytest.mark.parametrize(("name", "arch", "dtype", "head_dim"), CASES)
def test_values(name, arch, dtype, head_dim):
    judged(name, arch, dtype, head_dim)


@pytest.mark.parametrize("name", SPECS)
def test_the_interpreter(name):
    spec = Spec(head_dim=16, dtype="float32", **SPECS[name])
    chosen = plan(spec, "host")
    q, k, v, values = hostile.draw(spec, Sizes(2, 9, 40, 2, 1), [], np.random.RandomState(1))
    judge_of(spec, q, k, v, 1e-2, **values)(interpret(chosen, q, k, v, values))


def without(old, new):
    def change(text):
        assert re.search(old, text), old
        return re.sub(old, new, text)

    return change


MUTANTS = {
    "half of the terms": without(r"term < 32; \+\+term", "term < 16; ++term"),
    "numbers of another term": without(r"__shfl_sync\(~0u, a_of_lane, term\)", "__shfl_sync(~0u, a_of_lane, 0)"),
    "a lane that stands for another term": without(r"p\.arg_r\(int\(threadIdx\.x & 31\)\)", "p.arg_r(int(threadIdx.x & 15))"),
    "columns of the first eight alone": without(r"first \+ j / 4 \* 8", "first"),
    "one row": without(r"rows\[j / 2 % 2\]", "rows[0]"),
    "half of the elements": without(r"j < TOGETHER; \+\+j\) \{\n      s\[j\]", "j < TOGETHER / 2; ++j) {\n      s[j]"),
    "scores not made": without(r"\n  score_tile\(s, variant, q_idx, kv_begin\);", ""),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants(mutant):
    with pytest.raises(AssertionError):
        judged("a network", "sm_90a", "float16", 16, MUTANTS[mutant])


BACKWARD = {
    "a network": NETWORK | {"mask": "causal"},
    "of s, of which a param is learned": {
        "score": "s + c * sum(n, 20, 0.05 * a[n] * sin(s + r[n]))",
        "tensors": dict.fromkeys("ar", UNITS["a"]),
        "params": {"c": {"default": 0.5, "grad": True}},
    },
    "learned coefficients": {
        "score": "s + sum(n, 14, a[n] * cos(0.02 * n * (q_idx - kv_idx)))",
        "tensors": {"a": UNITS["a"] | {"grad": True}},
    },
}


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", BACKWARD)
def test_gradients(name, arch):
    spec = Spec(head_dim=64, dtype="bfloat16", backward=True, **BACKWARD[name])
    program, host = plan_backward(spec, arch), plan_backward(spec, "host")
    values = {t.name: tensor(*[{"hq": 2}.get(axis, axis) for axis in t.shape], seed=i) for i, t in enumerate(spec.tensors)}
    arrays = given(spec, 1, 2, 1, 70, 90, dlse=True, **values)
    judge(spec, emulate_backward(program, render(program), arrays, values), arrays, **values)
    judge(spec, interpret_backward(host, arrays, values), arrays, **values)
