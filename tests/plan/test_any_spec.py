"""Any composition of the language: planned and rendered for every machine, and right in the interpreter."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashgen.interpret import interpret
from flashgen.plan import plan
from flashgen.render import render
from flashgen.runtime import nvrtc
from tests.plan.agreement import judge
from tests.plan.any_spec import LOOSE, calls, specs


@settings(max_examples=50)
@given(specs(words=True), st.data())
def test_the_interpreter_is_right(spec, data):
    (q, k, v), values = data.draw(calls(spec, 40, aligned=False))
    judge(spec, interpret(plan(spec, "host"), q, k, v, values), q, k, v, LOOSE, **values)


@settings(max_examples=15)
@given(specs(step=8), st.sampled_from(["sm_80", "sm_90a"]), st.data())
def test_plans_for_gpus_are_right_and_have_a_text(spec, arch, data):
    chosen = plan(spec, arch)
    assert render(chosen).entries
    (q, k, v), values = data.draw(calls(spec, 150))
    judge(spec, interpret(chosen, q, k, v, values), q, k, v, LOOSE, **values)


@settings(max_examples=3)
@given(specs(step=8), st.sampled_from(["sm_80", "sm_90a"]))
def test_texts_compile(spec, arch):
    pytest.importorskip("cuda.bindings.nvrtc")
    assert nvrtc.compile(render(plan(spec, arch))).cubin
