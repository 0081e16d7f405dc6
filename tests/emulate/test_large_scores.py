"""Scores of any size that float32 holds, in kernels and in the interpreter, against the float64 reference."""

import numpy as np
import pytest

from flashgen.spec import Spec
from tests.emulate.test_integers import found_by
from tests.plan.agreement import arrays, judge

LARGEST = float(np.finfo(np.float32).max)
PAD = (np.arange(150) < 100).astype(np.float32)[None].repeat(2, 0)
PLACES = np.arange(150)[None].repeat(2, 0)
STEPS = (
    400.0 * (PLACES // 16) * [[1], [-1]]
)  # in each sequence the maximum grows by hundreds from key tile to key tile, in either direction
KEYS, ROWS, HEADS = ({"m": {"shape": shape, "dtype": "float32"}} for shape in (["b", "kv_len"], ["b", "q_len"], ["hq"]))
CASES = {  # what the spec says, and m
    "padding": ({"score": "s + 1e9 * (m[b, kv_idx] - 1.0)", "tensors": KEYS}, PAD),
    "padding-first": ({"score": "s + 1e9 * (m[b, kv_idx] - 1.0)", "tensors": KEYS}, 1 - PAD),
    "least": ({"score": "s + m[b, kv_idx]", "tensors": KEYS}, np.where(PAD > 0, 0, -LARGEST).astype(np.float32)),
    "all-least": ({"score": "s + m[b, kv_idx]", "tensors": KEYS}, np.full_like(PAD, -LARGEST)),
    "last-low": ({"score": "s + m[b, kv_idx]", "tensors": KEYS}, np.where(PAD > 0, 0, -1e30).astype(np.float32)),
    "first-high": ({"score": "s + m[b, kv_idx]", "tensors": KEYS}, np.where(PLACES == 7, 1e30, 0).astype(np.float32)),
    "steps": ({"score": "s + m[b, kv_idx]", "tensors": KEYS}, STEPS.astype(np.float32)),
    "a-row": ({"score": "where(q_idx == 3, 3e38, s)"}, None),
    "rows-high": ({"score": "s + m[b, q_idx]", "tensors": ROWS}, (PAD * 1e30).astype(np.float32)),
    "rows-low": ({"score": "s + m[b, q_idx]", "tensors": ROWS}, (PAD * -1e9).astype(np.float32)),
    "hidden-rows": ({"score": "s + m[b, q_idx]", "tensors": ROWS}, np.where(PAD > 0, 0, -np.inf).astype(np.float32)),
    "infinite-rows": ({"score": "s + m[b, q_idx]", "tensors": ROWS}, np.where(PAD > 0, 0, np.inf).astype(np.float32)),
    "infinite-keys": ({"score": "s + m[b, kv_idx]", "tensors": KEYS}, np.where(PLACES == 70, np.inf, 0).astype(np.float32)),
    "steep": ({"score": "s + slope * (kv_idx - q_idx)", "params": {"slope": 1e6}}, None),
    "steep-down": ({"score": "s - slope * (kv_idx - q_idx)", "params": {"slope": 1e6}}, None),
    "sinks": ({"softmax": {"sink": "m[h]"}, "tensors": HEADS}, np.array([LARGEST, -LARGEST, 1e9, -np.inf], np.float32)),
    "cancelling": ({"score": "s + m[b, q_idx]", "scale": 1e9, "tensors": ROWS}, (PAD * -4e9).astype(np.float32)),
    "scale": ({"scale": 1e6}, None),
    "scale-down": ({"score": "-s", "scale": 1e9}, None),
}  # fmt: skip
KERNELS = {
    "host": ("host", {"dtype": "float16"}),
    "sm_90a": ("sm_90a", {"dtype": "float16"}),
    "sm_80": ("sm_80", {"dtype": "bfloat16"}),
    "float32": ("sm_90a", {"dtype": "float32"}),
    "standard": ("sm_80", {"dtype": "float16", "schedule": "standard"}),
    "three_pass": ("sm_80", {"dtype": "float16", "schedule": "three_pass"}),
    "keys_outer": ("sm_80", {"dtype": "float16", "schedule": {"normalize": "each_step", "outer": "kv"}}),
}
FEW = ("padding", "padding-first", "a-row", "steps")
WITH = {"host": CASES, "sm_90a": CASES, "sm_80": (*FEW, "all-least", "sinks"), "float32": (*FEW, "all-least", "rows-high", "infinite-rows")}


@pytest.mark.parametrize(("kernel", "name"), [(kernel, name) for kernel in KERNELS for name in WITH.get(kernel, FEW)])
def test_large_scores(kernel, name):
    arch, given = KERNELS[kernel]
    said, m = CASES[name]
    spec = Spec(head_dim=16, mask="causal", block={"n": 64} if arch != "host" else None, outputs=["o", "lse"], **given, **said)
    q, k, v = arrays(spec, 2, 4, 2, 150, 150)
    values = {} if m is None else {"m": m}
    judge(spec, found_by(arch, spec, q, k, v, values), q, k, v, **values)


def test_a_bias_that_is_no_number_says_nothing_of_rows_without_a_key():
    spec = Spec(head_dim=16, dtype="float16", mask="q_idx > 70", score="s + m[b, q_idx]", tensors=ROWS, outputs=["o", "lse"])
    q, k, v = arrays(spec, 2, 4, 2, 150, 150)
    found = found_by("sm_90a", spec, q, k, v, {"m": np.full_like(PAD, np.nan)})
    assert (found["o"][:, :71] == 0).all()
    assert (found["lse"][..., :71] == -np.inf).all()
    assert np.isnan(found["o"][:, 71:].astype(np.float32)).all()


def test_a_factor_next_to_0_divides_no_bias():
    spec = Spec(head_dim=16, dtype="float16", score="s * c + 0.01 * kv_idx", params={"c": 1e-38}, outputs=["o", "lse"])
    q, k, v = arrays(spec, 1, 2, 1, 70, 150)
    judge(spec, found_by("sm_90a", spec, q, k, v, {}), q, k, v)
