"""The library of specs: each file is what its head says it is, is planned, and agrees with the float64 reference.

All of them run in the interpreter, on one small shape. On the emulator a sample runs, another one in every run of the tests;
`flashgen check NAME --emulate` runs any of them over many shapes, which takes minutes a spec.
"""

import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashgen.bench import hostile
from flashgen.emulate import emulate
from flashgen.interpret import interpret
from flashgen.plan import plan
from flashgen.plan.geometry import Sizes
from flashgen.render import render
from flashgen.spec import Spec, json_schema, load
from flashgen.spec.shipped import library, spec_root
from tests.plan.agreement import judge_of
from tests.spec.test_schema import accepts

LIBRARY = library()
FIELDS = {name: shipped for name, shipped in LIBRARY.items() if shipped.folder}
SCHEMA = json_schema()
LOOSE = 2e-3  # of logarithms: some scores multiply s
CITED = re.compile(r"[\w\-’' .]+ \d{4}, (arXiv:\d{4}\.\d{4,5}|the \w+.*|Nature.* \d+|Science \d+)(; .*)?")


def call(spec: Spec, batch: int, q_len: int, kv_len: int, seed: int):
    """q, k, v and the tensors of a call. Those of floats are between 0 and 1: some are logarithms' arguments, some are rates."""
    random = np.random.RandomState(seed)
    q, k, v, values = hostile.draw(spec, Sizes(batch, q_len, kv_len, spec.group or 2, 1), (), random)
    for tensor in spec.tensors:
        if tensor.dtype == "float32":
            values[tensor.name] = random.uniform(0.05, 1, values[tensor.name].shape).astype(np.float32)
    return q, k, v, values


@pytest.mark.parametrize("name", FIELDS)
def test_is_planned_and_agrees(name):
    spec = load(LIBRARY[name].path)
    assert spec.name == name
    assert accepts(SCHEMA, spec.to_json(), SCHEMA)
    assert Spec(**spec.to_json()) == spec
    chosen, _ = plan(spec, "sm_90a"), plan(spec, "sm_80")
    q, k, v, values = call(spec, 1, 33, 70, seed=0)
    with np.errstate(all="ignore"):  # of hidden keys a score may be anything
        judged = judge_of(spec, q, k, v, LOOSE, **values)
    judged(interpret(chosen, q, k, v, values))


@settings(max_examples=2)
@given(name=st.sampled_from(sorted(FIELDS)), arch=st.sampled_from(["sm_80", "sm_90a"]), seed=st.integers(0, 99))
def test_agrees_on_the_emulator(name, arch, seed):
    spec = load(LIBRARY[name].path)
    chosen = plan(spec, arch)
    q, k, v, values = call(spec, 1, 17, 40, seed)
    with np.errstate(all="ignore"):
        judged = judge_of(spec, q, k, v, LOOSE, **values)
    judged(emulate(chosen, render(chosen), q, k, v, values, seed=seed))


def test_there_is_one_for_every_field():
    assert {shipped.folder for shipped in FIELDS.values()} == {"biology", "language", "research", "serving", "sparse", "video", "vision"}
    assert len(FIELDS) >= 50


def test_names_are_those_of_files_and_taken_once():
    paths = list(spec_root().rglob("*.yaml"))
    assert Counter(path.stem for path in paths) == Counter(LIBRARY.keys())
    assert all(path.parent.parent in (spec_root(), spec_root().parent) for path in paths)


def test_no_two_say_the_same():
    said = Counter(shipped.keys.partition("\n")[2] for shipped in LIBRARY.values())
    assert not [keys for keys, times in said.items() if times > 1]


@pytest.mark.parametrize("name", LIBRARY)
def test_a_head_says_what_for_and_the_paper(name):
    shipped = LIBRARY[name]
    assert shipped.text.startswith("# ")
    assert shipped.purpose.endswith(".")
    assert max(map(len, shipped.text.splitlines())) <= 160
    assert CITED.fullmatch(shipped.paper) or name == "float32"
    for year, number in re.findall(r"(\d{4}), arXiv:(\d\d)", shipped.paper):
        assert year == f"20{number}"
