"""Asm statements that say too little: each planted in the device vocabulary, whose functions are right as they stand."""

import pytest

from flashgen.emulate import findings
from flashgen.render.snippets import vocabulary
from tests.render.products import product

DEVICE = {name: item for items in vocabulary().values() for name, item in items.items()}
TEXTS = DEVICE | {"product_qk": product("product_qk", 64, "bfloat16"), "product_pv": product("product_pv", 64, "float16")}
MOVABLE = ("here", "held", "read_until_here", "load_global_x4")  # of what the compiler may move, for speed held where they stand
VOLATILE = [name for name, text in TEXTS.items() if "asm volatile" in text and name not in MOVABLE]
CLOBBER = [name for name, text in TEXTS.items() if '"memory"' in text and not name.startswith(("stmatrix", "store_shared"))]


def planted(name, right, wrong):
    text = TEXTS[name]
    assert right in text
    return [str(finding) for finding in findings(text.replace(right, wrong, 1))]


@pytest.mark.parametrize("name", TEXTS)
def test_the_vocabulary_is_right(name):
    assert not findings(TEXTS[name])


@pytest.mark.parametrize("name", VOLATILE)
def test_volatile_left_out(name):
    assert any("without volatile" in found for found in planted(name, "asm volatile", "asm"))


@pytest.mark.parametrize("name", CLOBBER)
def test_the_clobber_left_out(name):
    assert any('without the "memory" clobber' in found for found in planted(name, '"memory"', ""))


@pytest.mark.parametrize("name", ["mma_f16", "mma_bf16", "product_qk", "product_pv"])
def test_an_accumulator_that_is_an_output_alone(name):
    (found,) = planted(name, '"+f"(d[2])', '"=f"(d[2])')
    assert found.endswith('reads %2, "=f"(d[2]), which has no value yet: "+f"')


def test_a_result_that_is_an_input():
    assert any("writes %0, the input" in found for found in planted("exp2", '"=f"(y) :', ': "f"(y),'))


def test_a_result_that_no_instruction_writes():
    assert any("no instruction writes %3" in found for found in planted("ldmatrix_x4", "{%0, %1, %2, %3}", "{%0, %1, %2, %2}"))
    assert any("no instruction writes %0" in found for found in planted("here", '"+f"', '"=f"'))


def test_what_an_asm_wrote_itself_it_may_read():
    assert not findings('asm("mul.wide.s32 %0, %1, %2; add.s64 %0, %0, 1;" : "=l"(x) : "r"(a), "r"(b));')


def test_an_instruction_that_is_not_known_is_taken_to_touch_memory():
    lines = [str(finding) for finding in findings('void f() {\n  asm("tcgen05.st.sync.aligned [%0], %1;" :: "r"(a), "r"(b));\n}\n')]
    assert len(lines) == 2
    assert all(line.startswith("line 2: `tcgen05.st.sync.aligned` in asm without") for line in lines)
