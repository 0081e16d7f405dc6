"""The instructions that a plan foretells, against those of the machine code."""

import re

import pytest

from flashgen.bench.cases import VARIANTS
from flashgen.errors import BackendError
from flashgen.plan import plan
from flashgen.plan.instructions import instructions
from flashgen.render import render
from flashgen.runtime import nvrtc
from flashgen.spec import Spec

MULTIPLIES = ("FFMA", "FMUL", "FADD")
CASES = [("causal", 64), ("causal", 128), ("softcap", 64), ("softcap", 128), ("alibi", 128), ("bias", 128), ("sigmoid", 128), ("log_n", 64)]


@pytest.fixture(scope="module", autouse=True)
def tools():
    try:
        nvrtc.compiler()
        nvrtc.disassembler()
    except BackendError as error:
        pytest.skip(str(error))


def loops(text):
    """The bodies of all loops, as lists of operations, the shortest first."""
    labels, operations, found = {}, [], []
    for line in text.splitlines():
        if label := re.match(r"\s*(\.L_x_\w+):", line):
            labels[label[1]] = len(operations)
        elif code := re.match(r"\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?(\w+).*?;", line):
            operations.append(code[1])
            target = re.search(r"\bBRA\b.*?(\.L_x_\w+)", line)
            if target and target[1] in labels:
                found.append((labels[target[1]], len(operations)))
    return sorted((operations[begin:end] for begin, end in found), key=len)


@pytest.mark.parametrize(("variant", "head_dim"), CASES)
def test_machine_code_has_what_the_plan_foretells(variant, head_dim):
    chosen = plan(Spec(head_dim=head_dim, dtype="bfloat16", **VARIANTS[variant]), "sm_90a")
    products = chosen.tile.qk_columns // 16 + chosen.tile.block_n // 16
    body = next(body for body in loops(nvrtc.disassemble(nvrtc.compile(render(chosen)))) if body.count("HGMMA") == products)
    foretold = instructions(chosen.tile, chosen.softmax, chosen.holes)
    assert foretold.special == pytest.approx(body.count("MUFU"), rel=0.15)
    assert foretold.multiply == pytest.approx(sum(map(body.count, MULTIPLIES)), rel=0.15)
