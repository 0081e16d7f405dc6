"""A user's names are the user's: what emitted texts, launches and the emulator call their own may be a param's or a tensor's name."""

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

from flashgen.emulate import emulate
from flashgen.expr.language.scope import words as language_words
from flashgen.interpret import interpret
from flashgen.plan import plan
from flashgen.plan.backward import plan_backward
from flashgen.plan.geometry import Sizes
from flashgen.plan.params import record_dtype, scalars
from flashgen.plan.program import Program
from flashgen.render import render
from flashgen.spec import Spec
from flashgen.spec.words import value_name_fault
from tests.plan.agreement import arrays, judge, judge_of

IDS = {"ids": {"shape": ["b", "kv_len"], "dtype": "int32"}}
AT = {"at": {"shape": ["b", "kv_len"], "dtype": "float32"}}
SEEN = {"seen": {"shape": ["q_len", "kv_len"], "dtype": "bool"}}
FAMILIES: dict[str, tuple[str, int, dict[str, Any]]] = {  # of emitted text: arch, keys, and what the spec has besides names
    "sm_90a": ("sm_90a", 8192, {"dtype": "bfloat16", "mask": "causal"}),
    "documents": ("sm_90a", 8192, {"dtype": "bfloat16", "mask": "document(ids)", "tensors": IDS, "outputs": ["o", "max_logit"]}),
    "sm_80": ("sm_80", 8192, {"dtype": "float16", "mask": "causal"}),
    "planes": ("sm_90a", 8192, {"dtype": "float32", "mask": "causal"}),
    "planes in place": ("sm_90a", 1024, {"dtype": "float32", "mask": "causal"}),
    "planes on sm_80": ("sm_80", 8192, {"dtype": "float32", "mask": "causal"}),
    "keys outside": ("sm_90", 8192, {"dtype": "float16", "schedule": {"outer": "kv", "normalize": "each_step"}}),
    "three passes": ("sm_90", 8192, {"dtype": "float16", "schedule": "three_pass"}),
    "standard": ("sm_90", 8192, {"dtype": "float16", "schedule": "standard"}),
    "pages": ("sm_90a", 8192, {"dtype": "bfloat16", "mask": "causal", "cache": {"page": 16}, "split": 2}),
    "packed": ("sm_90a", 8192, {"dtype": "bfloat16", "mask": "causal", "layout": "thd", "split": 2}),
    "packed pages": ("sm_80", 8192, {"dtype": "bfloat16", "mask": "causal", "layout": "thd", "cache": {"page": 16}}),
    "lists": ("sm_90a", 8192, {"dtype": "float16", "blocks": {"m": 128, "n": 64, "lists": "idx"}}),
    "made lists": ("sm_80", 8192, {"dtype": "float16", "mask": "kv_idx // 64 % 3 == q_idx // 64 % 3"}),
    "embedding": ("sm_90a", 8192, {"dtype": "float16", "norm": {"eps": 1e-5}, "rotary": {"kind": "halves", "base": 100.0}}),
    "begins": (
        "sm_90a",
        8192,
        {"dtype": "bfloat16", "score": "at[b, kv_idx]", "tensors": AT, "weight": "0.5 + kv_idx % 2", "output": "o + v_idx"},
    ),
    "bits": ("sm_90a", 8192, {"dtype": "bfloat16", "mask": "seen[q_idx, kv_idx]", "tensors": SEEN, "outputs": ["o", "entropy"]}),
    "backward": ("sm_80", 8192, {"dtype": "bfloat16", "mask": "causal", "backward": True, "outputs": ["o", "lse"]}),
    "backward of Hopper": ("sm_90a", 8192, {"dtype": "bfloat16", "mask": "causal", "backward": True, "outputs": ["o", "lse"]}),
    "backward by pairs": ("sm_90a", 8192, {"dtype": "bfloat16", "head_dim": 256, "backward": True, "outputs": ["o", "lse"]}),
}
OF_SCALARS = (
    "heads",
    "batch",
    "group",
    "section",
    "softmax_scale",
    "row",
    "column",
    "p",
    "Params",
    "kernel",
    "values",
    "arg_s",
    "half",
    "template",
)
OF_ARRAYS = (
    "counter",
    "halves",
    "lost",
    "k_planes",
    "v_planes",
    "k_scales",
    "v_scales",
    "extents_seen_0",
    "seen_0",
    "names",
    "arg_q",
    "read",
)
TOGETHER = 16  # names in one spec


def named(family: str, params: Sequence[str], tensors: Sequence[str]) -> Spec:
    """A spec of a family whose score reads these params and tensors."""
    more = dict(FAMILIES[family][2])
    operator, read = " + " if "backward" in more or "score" in more else " * ", [*params, *(f"{name}[h]" for name in tensors)]
    parts = [f"({operator.join(read[i : i + 8])})" for i in range(0, len(read), 8)]  # planned in less time than one long chain
    score = operator.join(["s", *parts])
    given = {name: {"shape": ["hq"], "dtype": "float32"} for name in tensors} | more.pop("tensors", {})
    return Spec(
        **{"head_dim": 64} | more | {"score": f"{score} + {more.get('score', '1.0')}"}, params=dict.fromkeys(params, 1.0), tensors=given
    )


def planned(family: str, params: Sequence[str], tensors: Sequence[str]) -> Program:
    arch, length, _ = FAMILIES[family]
    spec = named(family, params, tensors)
    return plan_backward(spec, arch) if spec.backward else plan(spec, arch, length=length)


@cache
def words(family: str) -> list[str]:
    """The identifiers of a family's text that a param may be called."""
    found = set(re.findall(r"[A-Za-z]\w*", render(planned(family, ["one"], ["two"])).text))
    taken = {*language_words(), *IDS, *AT, *SEEN, "idx"}  # all but the first by the spec itself
    return sorted(name for name in found - taken if not value_name_fault(name))


@pytest.mark.parametrize("family", FAMILIES)
def test_names_of_texts_are_free_in_specs(family: str) -> None:
    names = words(family)
    plainly = scalars(planned(family, ["one"], ["two"]), SIZES, {"one": 1.0})
    for first in range(0, len(names), TOGETHER):
        some, others = names[first : first + TOGETHER], names[first - TOGETHER : first] or names[-TOGETHER:]
        chosen = planned(family, some, others)
        members = [member.name for member in chosen.holes.uniform]
        assert len(members) == len(set(members))
        text = render(chosen).text
        assert all(f"arg_{name};" in text for name in (*some, *others))
        record = record_dtype(chosen.arguments)
        assert {f"arg_{name}" for name in (*some, *others)} < set(record.names or ())
        values = {name: float(i) for i, name in enumerate(some, 2)}
        known = scalars(chosen, SIZES, values)
        assert {name: known[f"arg_{name}"] for name in some} == values
        assert known.items() >= {name: x for name, x in plainly.items() if name != "arg_one"}.items()


SIZES = Sizes(batch=2, q_len=70, kv_len=90, heads=4, kv_heads=2)


@pytest.mark.parametrize("family", ["documents", "sm_80", "planes", "planes in place", "standard"])
def test_names_of_launches_change_no_result(family: str) -> None:
    chosen = planned(family, OF_SCALARS, OF_ARRAYS)
    q, k, v = arrays(chosen.spec, 2, 4, 2, 70, 90)
    values: dict[str, Any] = {name: 1 + i / 64 for i, name in enumerate(OF_SCALARS)}
    values |= {name: np.float32([1, 1.25, 0.75, 0.5]) ** (-1) ** i for i, name in enumerate(OF_ARRAYS)}
    values |= {name: np.sort(np.arange(180) % 3).reshape(2, 90).astype(np.int32) for name in IDS if name in chosen.spec.mask}
    judged = judge_of(chosen.spec, q, k, v, **values)
    for found in (emulate(chosen, render(chosen), q, k, v, values), interpret(chosen, q, k, v, values)):
        judged(found)


def test_reads_of_a_tensor_are_told_from_tensors_called_alike() -> None:
    names = ("x", "x_2", "x_3")
    spec = Spec(
        head_dim=64,
        dtype="bfloat16",
        score="s + x[b, kv_idx] + x[hk, kv_idx] + x[1 - b, kv_idx] + 2.0 * x_2[b, kv_idx] - x_3[hk, kv_idx]",
        tensors={name: {"shape": [2, "kv_len"], "dtype": "float32"} for name in names},
    )
    q, k, v = arrays(spec, 2, 4, 2, 70, 90)
    values = {name: np.random.default_rng(i).standard_normal((2, 90)).astype(np.float32) for i, name in enumerate(names)}
    chosen = plan(spec, "sm_90a")
    judge(spec, emulate(chosen, render(chosen), q, k, v, values), q, k, v, **values)
