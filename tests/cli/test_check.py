"""`flashgen check`: what passes, and that a wrong kernel does not."""

import json

import numpy as np
import pytest

from flashgen.cli import check as checking
from flashgen.cli import check_backward
from flashgen.interpret import interpret
from flashgen.spec import Spec


def test_a_right_plan_passes(flashgen):
    ran = flashgen("check", "softcap", "--arch", "sm_90a", "--json")
    assert ran.code == 0, ran.out
    report = json.loads(ran.out)
    assert report["passed"]
    data = [shape["data"] for shape in report["shapes"]]
    assert data == [""] * len(checking.SHAPES) + ["short"] * len(checking.SHORT) + ["views"]
    assert all(0 < shape["o_error"] <= shape["o_limit"] for shape in report["shapes"] if not shape["data"])


def test_the_emulated_kernel_passes(flashgen, monkeypatch, tmp_path):
    monkeypatch.setattr(checking, "SHAPES", ((1, 70, 90, 1),))
    (tmp_path / "small.yaml").write_text("dtype: float16\nhead_dim: 64\nmask: causal\nblock: {m: 64, n: 64}\n")
    ran = flashgen("check", tmp_path / "small.yaml", "--emulate", "--seeds", 2)
    assert ran.code == 0, ran.out
    assert "under the emulator" in ran.out


def test_operands_of_11_bits_are_allowed_what_they_cost(flashgen, monkeypatch, tmp_path):
    monkeypatch.setattr(checking, "SHAPES", ((1, 64, 64, 1),))
    (tmp_path / "rounded.yaml").write_text("dtype: float32\nhead_dim: 16\nmask: causal\nprecision: tf32\n")
    shape, *_ = json.loads(flashgen("check", tmp_path / "rounded.yaml", "--emulate", "--json").out)["shapes"]
    assert shape["passed"]
    assert shape["o_error"] > checking.FLOOR["float32"]


@pytest.mark.parametrize("change", ["o", "lse", "nan"])
def test_a_wrong_kernel_is_exit_code_1(flashgen, monkeypatch, change):
    right = checking.interpret

    def wrong(program, q, k, v, values):
        found = right(program, q, k, v, values)
        if program.softmax.materialize or q.shape[1] != 300:
            return found
        o, lse = found["o"], found["lse"]
        return found | {"o": {"o": o * o.dtype.type(1.1)}, "lse": {"lse": lse + 0.01}, "nan": {"o": np.full_like(o, np.nan)}}[change]

    monkeypatch.setattr(checking, "interpret", wrong)
    ran = flashgen("check", "causal", "--arch", "host")
    assert (ran.code, ran.err) == (1, "")
    assert {"o": "each about 1.1 times", "lse": "each about 0.01 more", "nan": "of them NaN"}[change] in ran.out
    assert f"1 of {len(checking.SHAPES) + len(checking.SHORT) + 1} cases failed" in ran.out
    report = json.loads(flashgen("check", "causal", "--arch", "host", "--json").out)
    assert not report["passed"]
    assert [shape["q_len"] for shape in report["shapes"] if not shape["passed"]] == [300]


@pytest.mark.parametrize("spec", [
    Spec(head_dim=7, dtype="float32", mask="causal", layout="bhsd"),
    Spec(head_dim=16, dtype="float32", mask="kv_idx < lens[b]", tensors={"lens": {"shape": ["b"], "dtype": "int32"}}, group=3),
    Spec(head_dim=16, dtype="bfloat16", score="where(on[h], s, s + bias[q_idx, kv_idx])",
         tensors={"on": {"shape": ["hq"], "dtype": "bool"}, "bias": {"shape": ["q_len", "kv_len"], "dtype": "float32"}}),
    Spec(head_dim=16, dtype="float16", score="sigmoid(s)", softmax="none"),
    Spec(head_dim=16, dtype="float16", softmax={"sink": "sinks[h]"}, tensors={"sinks": {"shape": ["hq"], "dtype": "float32"}}),
])  # fmt: skip
def test_any_spec_has_inputs(spec):
    assert checking.check(spec, "host", emulated=False, seeds=1).passed


@pytest.mark.parametrize(("kind", "keys"), [
    ("integers", {"mask": "kv_idx < lens[b]", "tensors": {"lens": {"shape": ["b"], "dtype": "int32"}}}),
    ("integers", {"mask": "window(left, 0)", "params": {"left": 40}}),
    ("biases", {"score": "s + bias[b, kv_idx]", "tensors": {"bias": {"shape": ["b", "kv_len"], "dtype": "float32"}}}),
    ("hidden", {"mask": "window(20, 0)"}),
    ("axes", {"score": "s + bias[b, kv_idx]", "tensors": {"bias": {"shape": ["b", "kv_len"], "dtype": "float32"}}}),
    ("views", {"score": "s + bias[b, kv_idx]", "tensors": {"bias": {"shape": ["b", "kv_len"], "dtype": "float32"}}}),
])  # fmt: skip
def test_hostile_data_is_a_row_and_told_when_it_fails(flashgen, monkeypatch, tmp_path, kind, keys):
    monkeypatch.setattr(checking, "SHAPES", ())
    (tmp_path / "spec.yaml").write_text(json.dumps({"dtype": "float16", "head_dim": 16, **keys}))
    ran = flashgen("check", tmp_path / "spec.yaml", "--arch", "sm_80", "--emulate", "--json")
    assert ran.code == 0, ran.out
    assert kind in [shape["data"] for shape in json.loads(ran.out)["shapes"]]
    monkeypatch.setattr(checking, "interpret", lambda *given: {name: x + 1 for name, x in interpret(*given).items()})
    ran = flashgen("check", tmp_path / "spec.yaml", "--arch", "host")
    assert ran.code == 1
    assert f"{kind} failed: " in ran.out


GRAD = {
    "name": "bent",
    "dtype": "float16",
    "head_dim": 16,
    "score": "c * tanh(s / c) + x[h, kv_idx]",
    "mask": "window(5, 0)",
    "backward": True,
}
GRAD |= {"params": {"c": {"default": 5.0, "grad": True}}, "tensors": {"x": {"shape": ["hq", "kv_len"], "dtype": "float32", "grad": True}}}


def test_gradients_are_judged_too(flashgen, monkeypatch, tmp_path):
    monkeypatch.setattr(checking, "SHAPES", ((1, 40, 50, 1),))
    monkeypatch.setattr(checking, "HOSTILE", (1, 20, 30, 1))
    (tmp_path / "bent.yaml").write_text(json.dumps(GRAD))
    ran = flashgen("check", tmp_path / "bent.yaml", "--arch", "sm_80", "--json", "--emulate")
    assert ran.code == 0, ran.out
    shapes = json.loads(ran.out)["shapes"]
    assert 0 < shapes[0]["dq_error"] <= shapes[0]["dq_limit"]
    assert {"dk_error", "dv_error", "x_error", "c_error"} <= shapes[0].keys()
    assert {shape["data"] for shape in shapes if "dq_error" not in shape} == {"biases"}
    assert {"hidden", "axes", "views", "short"} <= {shape["data"] for shape in shapes if "dq_error" in shape}


def test_what_is_wrong_with_a_gradient_is_told(flashgen, monkeypatch, tmp_path):
    right = check_backward.emulate_backward

    def wrong(*given, **options):
        found = right(*given, **options)
        found["dk"][0, 16:24] *= 2
        return found

    monkeypatch.setattr(checking, "SHAPES", ((1, 40, 50, 1),))
    monkeypatch.setattr(checking, "SHORT", ())
    monkeypatch.setattr(checking, "HOSTILE", (1, 20, 30, 1))
    monkeypatch.setattr(check_backward, "emulate_backward", wrong)
    (tmp_path / "plain.yaml").write_text(json.dumps({"head_dim": 16, "dtype": "float16", "backward": True}))
    ran = flashgen("check", tmp_path / "plain.yaml", "--arch", "sm_80", "--emulate", "--seeds", "1")
    assert ran.code == 1
    told = ran.out.replace("\n", " ")
    assert "dk: " in told
    assert "rows 16-23 of 50" in told
    assert "each about 2 times what it should be" in told
    assert "it was written by block" in told


def test_a_wrong_gradient_is_exit_code_1(flashgen, monkeypatch, tmp_path):
    right = check_backward.interpret_backward

    def wrong(*given):
        found = right(*given)
        return found | {"x": found["x"] * np.float32(1.2)}

    monkeypatch.setattr(checking, "SHAPES", ((1, 40, 50, 1),))
    monkeypatch.setattr(checking, "SHORT", ())
    monkeypatch.setattr(checking, "HOSTILE", (1, 20, 30, 1))
    monkeypatch.setattr(check_backward, "interpret_backward", wrong)
    (tmp_path / "bent.yaml").write_text(json.dumps(GRAD))
    assert flashgen("check", tmp_path / "bent.yaml", "--arch", "host").code == 1
