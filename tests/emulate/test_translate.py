"""asm statements become calls of twins, and nothing else changes."""

import pytest

from flashgen.emulate.translate import Instruction, translate

ENTRY = 'extern "C" __global__ void forward(Params p) { %s }'


def calls(statement):
    text = translate(ENTRY % statement, "a.cu").text
    return text[text.index("{ {") + 2 : text.index(" }\nconstexpr")].strip().replace("::cuda_on_host::ptx::", "")


@pytest.mark.parametrize(
    ("statement", "call"),
    [
        ('asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x + 1));', "{ ex2_approx_ftz_f32((y), (x + 1)); }"),
        (
            'asm volatile("a.b [%0], [%1, {%2, %3}];" :: "r"(s), "l"(m), "r"(c0), "r"(c1) : "memory");',
            "{ a_b((s), (m), {(c0), (c1)}); }",
        ),
        (
            'asm volatile("{ .reg .pred p; setp.ne.b32 p, %3, 0; w.m64n8k16 {%0,%1}, %2, p; }" : "+f"(d[0]), "+f"(d[1]) : "l"(a), "r"(n));',
            "{ { bool p; setp_ne_b32(p, (n), 0); w_m64k16<8>(neighbours<2>(d), (a), p); } }",
        ),
        ('asm volatile("ld.v2 {%0,%1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(a));', "{ ld_v2(references((v.x), (v.y)), (a)); }"),
        ('asm volatile("{ W: a.b p, [%0]; @!p bra W; }" :: "r"(b));', "{ { W: ; a_b(p, (b)); if (!p) goto W; } }"),
        ('asm volatile("" : "+f"(x) :: "memory");', "{  }"),
    ],
)
def test_statements(statement, call):
    assert calls(statement) == call


def test_lines_are_kept():
    text = 'void f() {\n  asm volatile("a.b"\n    ::\n    : "memory");\n  g();\n}\n' + ENTRY % ""
    host = translate(text, "a.cu")
    numbered = host.text[host.text.index('#line 1 "a.cu"\n') + 15 :].splitlines()
    assert numbered[4] == "  g();"
    assert host.instructions == (Instruction("a_b", "a.b", 2),)


def test_shared_memory_is_reached_by_address_only():
    host = translate(ENTRY % "extern __shared__ __align__(1024) unsigned char memory[]; use(memory);", "a.cu")
    assert "::cuda_on_host::SharedArray memory; use(memory);" in host.text
