"""The outputs besides o, as the emitted kernels of every family write them; and one that only its row knows."""

import dataclasses
import json

import numpy as np
import pytest

import flashgen
from flashgen.bench import hostile
from flashgen.cli.check import check
from flashgen.emulate import emulate
from flashgen.errors import BackendError
from flashgen.expr.meaning.reference import reference_outputs
from flashgen.plan import plan
from flashgen.plan.geometry import Sizes
from flashgen.render import render
from flashgen.runtime import nvrtc
from flashgen.spec import Spec
from flashgen.spec.outputs import OUTPUTS, ROW, Output, Statistic
from tests.plan.agreement import arrays, error, judge

FAMILIES = {
    "sm_90a": {},
    "sm_80": {},
    "sm_90a three warpgroups": {"softmax": {"sink": "slopes[h]"}, "block": {"m": 192}},
    "sm_90a any strides": {"layout": "bhsd"},
    "standard": {"schedule": "standard"},
    "two_pass": {"schedule": "two_pass"},
    "keys_outer": {"schedule": {"normalize": "each_step", "outer": "kv"}},
    "float32 sm_90a": {"dtype": "float32"},
    "float32 sm_80": {"dtype": "float32"},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_maxima(family):
    keys = {"head_dim": 64, "dtype": "float16", "mask": "causal & (h < 3)", "score": "s + slopes[h] * (kv_idx - q_idx)", **FAMILIES[family]}
    outputs = ["o", "lse", "max", "max_logit"] if "90" in family else ["o", "max_logit"]
    spec = Spec(**keys, tensors={"slopes": {"shape": ["hq"], "dtype": "float32"}}, outputs=outputs)
    chosen = plan(spec, "sm_80" if "sm_80" in family else "sm_90a", 4 if "strides" in family else 0)
    q, k, v = arrays(spec, 2, 4, 2, 150, 140)
    slopes = np.float32([-0.5, 0.25, 0, 1])
    found = emulate(chosen, render(chosen), q, k, v, {"slopes": slopes})
    known = reference_outputs(spec, q, k, v, slopes=slopes)
    assert list(found) == outputs
    assert np.isneginf(found["max_logit"][3])
    for name, most in (("lse", 1e-3), ("max", 1e-4), ("max_logit", 1e-4)):
        assert name not in outputs or error(found[name], known[name]) < most, name


def test_without_queries_no_head_has_a_maximum():
    spec = Spec(head_dim=64, dtype="float16", outputs=["o", "max_logit"])
    chosen = plan(spec, "sm_80")
    q, k, v = arrays(spec, 2, 4, 2, 0, 140)
    found = emulate(chosen, render(chosen), q, k, v)
    assert np.isneginf(found["max_logit"]).all()


ENTROPIES = {
    "sm_90a": {"score": "s + slopes[h] * (kv_idx - q_idx)"},  # rows and columns have a part of their own
    "sm_90a softcap": {"score": "20 * tanh(s / 20) + slopes[h]", "softmax": "off_by_one", "block": {"m": 192}},
    "sm_90a lazy": {"head_dim": 128, "score": "8 * s + slopes[h]"},
    "sm_80": {"score": "s + slopes[h]", "softmax": {"sink": "slopes[h]"}},
    "sm_80 two blocks": {"head_dim": {"qk": 64, "v": 272}, "score": "s + slopes[h]"},
    "three_pass": {"schedule": "three_pass", "score": "s + slopes[h]"},
    "two_pass": {"schedule": "two_pass", "score": "s + slopes[h]", "softmax": {"sink": "slopes[h]"}},
    "each_step": {"schedule": {"normalize": "each_step"}, "score": "s + slopes[h]"},
    "keys_outer": {"schedule": {"normalize": "each_step", "outer": "kv"}, "score": "s + slopes[h]", "block": {"m": 64, "n": 64}},
    "standard": {"schedule": "standard", "score": "s + slopes[h]", "softmax": {"sink": "slopes[h]"}},
    "float32 sm_90a": {"dtype": "float32", "score": "s + slopes[h]"},
    "float32 sm_80": {"dtype": "float32", "score": "3 * s + slopes[h]", "softmax": {"sink": "slopes[h]"}},
}


@pytest.mark.parametrize("family", ENTROPIES)
def test_entropy(family):
    """Several key tiles, rows that see nothing, and where float32 splits, rows that planes do not hold."""
    keys = {"head_dim": 64, "dtype": "float16", "mask": "causal & (h < 3)", **ENTROPIES[family]}
    spec = Spec(**keys, tensors={"slopes": {"shape": ["hq"], "dtype": "float32"}}, outputs=["o", "entropy"])
    chosen = plan(spec, "sm_90a" if "90" in family else "sm_80")
    q, k, v = arrays(spec, 1, 4, 2, 70, 300)
    k[:, 200:300:9] *= 1e-8 if spec.dtype == "float32" else 1
    slopes = np.float32([-0.5, 0.25, 2, 1])
    found = emulate(chosen, render(chosen), q, k, v, {"slopes": slopes})
    judge(spec, found, q, k, v, slopes=slopes)
    assert error(found["entropy"], reference_outputs(spec, q, k, v, slopes=slopes)["entropy"]) < 1e-4
    assert not found["entropy"][0, 3].any()


@pytest.mark.parametrize("arch", ["host", "sm_90a"])
def test_entropy_of_hostile_data(arch):
    spec = Spec(
        head_dim=16,
        dtype="float16",
        score="s + bias[h, kv_idx]",
        mask="window(40, 0)",
        outputs=["o", "lse", "entropy"],
        tensors={"bias": {"shape": ["hq", "kv_len"], "dtype": "float32"}},
    )
    sizes = Sizes(batch=1, q_len=70, kv_len=150, heads=2, kv_heads=1)
    for seed in range(3):
        q, k, v, values = hostile.draw(spec, sizes, ["biases", "hidden"], np.random.RandomState(seed))
        found = flashgen.compile(spec, arch, "interpreter" if arch == "host" else "emulate")(q, k, v, **values)
        judge(spec, dict(zip(spec.outputs, found, strict=True)), q, k, v, **values)


SQUARES = Statistic(
    name="squares",
    text="the squares of the weights",
    term=lambda _xp, weight, _exponent: weight * weight,
    moved=lambda _xp, squares, _l, weight, _exponent: weight * weight * squares,
    multiplies=1,
    registers=4,
)
SHARED = Output(
    name="shared",
    axes=ROW,
    text="[b, hq, q_len], the sum of the squares of the weights of each row",
    comment="the sum of the squares of the weights of a row",
    empty=0.0,
    reference=lambda exact: (exact.p**2).sum(-1),
    statistic=SQUARES,
    finish=lambda xp, total, squares, sink: xp.divide(squares, total * total) - (0.0 if sink is None else sink * sink),
    between=lambda least, most: ((least**2).sum(-1), (most**2).sum(-1)),
    tolerance=1e-3,
)


def test_an_output_is_its_row(monkeypatch):
    """One that nothing else knows of is read, planned, interpreted, emulated, checked and compiled."""
    monkeypatch.setitem(OUTPUTS, "shared", SHARED)
    keys = {"head_dim": 16, "mask": "causal & (h < 1)", "score": "3 * s", "outputs": ["o", "shared", "entropy"]}
    for arch, more in (
        ("host", {"dtype": "float16", "softmax": "off_by_one"}),
        ("sm_90a", {"dtype": "float16"}),
        ("sm_80", {"dtype": "bfloat16", "schedule": {"normalize": "each_step", "outer": "kv"}, "softmax": "off_by_one"}),
        ("sm_80", {"dtype": "float32", "softmax": "off_by_one"}),
    ):
        spec = Spec(**keys, **more)
        q, k, v = arrays(spec, 1, 2, 1, 70, 150)
        found = flashgen.compile(spec, arch, "interpreter" if arch == "host" else "emulate")(q, k, v)
        judge(spec, dict(zip(spec.outputs, found, strict=True)), q, k, v)
        assert spec.outputs == ("o", "entropy", "shared")
    report = check(Spec(**keys, dtype="float16"), "host", emulated=False, seeds=1)
    assert report.passed
    assert "shared_error" in json.dumps(report.to_json())
    text = render(plan(Spec(**keys, dtype="bfloat16"), "sm_90a"))
    assert "float squares[2] = {0.0f, 0.0f};" in text.text
    try:
        nvrtc.compiler()
    except BackendError as fault:
        pytest.skip(str(fault))
    assert nvrtc.compile(text).cubin


def test_a_cell_that_is_missing_is_told():
    with pytest.raises(ValueError, match="the output 'shared' has a statistic and no finish"):
        dataclasses.replace(SHARED, finish=None)
