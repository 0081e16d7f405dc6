"""Programs are values: equal ones have one hash, by which compiled kernels are kept."""

import pytest

from flashgen.plan import Program, plan
from flashgen.plan.backward import plan_backward
from flashgen.spec import Spec, load
from flashgen.spec.shipped import spec_root

BOUNDED = Spec(
    head_dim=64,
    dtype="float16",
    mask="causal & window(reach, 0) & document(ids)",
    params={"reach": {"default": 8, "min": 0, "max": 64}},
    tensors={"ids": {"shape": ["b", "kv_len"], "dtype": "int32"}},
    backward=True,
)


def again(program: Program) -> Program:
    """The same program, planned anew."""
    plan.cache_clear()
    return plan_backward(program.spec, program.arch) if not program.attentions else plan(program.spec, program.arch)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("spec", [*map(load, sorted(spec_root().glob("*.yaml"))), BOUNDED], ids=lambda spec: spec.name)
def test_a_program_has_a_hash(spec: Spec, arch: str) -> None:
    first = plan(spec, arch)
    assert (hash(again(first)), again(first)) == (hash(first), first)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_a_backward_has_a_hash(arch: str) -> None:
    first = plan_backward(BOUNDED, arch)
    assert hash(again(first)) == hash(first)
