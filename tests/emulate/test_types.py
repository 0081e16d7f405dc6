"""Pointers and arrays of a text as types that see what is done through them."""

import re
from pathlib import Path

import pytest

from flashgen.emulate.types import NAMESPACE, REGISTERS_ALONE, with_types

GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("*.cu"))


@pytest.mark.parametrize(
    ("declaration", "host"),
    [
        ("float x[2][N / 2] = {};", "Local<float, 2, N / 2> x = {};"),
        ("void f(const u32 (&x)[A][B][4], int n)", "void f(const Local<u32, A, B, 4>& x, int n)"),
        ("void f(float (&)[2])", "void f(Local<float, 2>& )"),
        ("float x[2][4], y[2] = {1, 2}, z = 1;", "Local<float, 2, 4> x; Local<float, 2> y = {1, 2}; float z = 1;"),
        ("u32 x[2][4] = {}, y;", "Local<u32, 2, 4> x = {}; u32 y;"),
        ("Variant::Row row[2];", "Local<Variant::Row, 2> row;"),
        ("unsigned long long x[3];", "Local<unsigned long long, 3> x;"),
        ("auto f(const auto (&x)[4], auto y)", "auto f(const auto& x, auto y)"),
        ("else x[1][2] = y;", "else x[1][2] = y;"),
        ("return x[1];", "return x[1];"),
        ("const float* const x = p.x + a * b;", "Pointer<const float> const x = p.x + a * b;"),
        ("f(const T* from, void* to, At* at)", "f(Pointer<const T> from, void* to, At* at)"),
        ("*reinterpret_cast<const Two<T>*>(x)", "*cast<const Two<T>>(x)"),
        ("*reinterpret_cast<u32(*)[4]>(x)", "*cast<Local<u32, 4>>(x)"),
    ],
)
def test_types(declaration, host):
    assert with_types(declaration).replace(NAMESPACE, "") == host


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_no_pointer_and_no_array_of_a_kernel_is_left_out(path):
    code = re.sub(r"//.*|asm[^;]*;", "", with_types(path.read_text()))
    assert set(re.findall(r"(\w+)\*(?!=)", code)) <= {*REGISTERS_ALONE}
    arrays = re.findall(r"^\s*(?!return|else)(?:const )?[\w:]+ \w+\[[^]]+\](?:;|,| =)", code, re.M)
    assert [a for a in arrays if "bytes[128]" not in a] == []
