"""Addresses in 32 bits: planted in emitted texts, found without running them; and arrays so wide apart that a test must tell."""

import functools

import pytest

from flashgen.emulate import int_products, narrowings
from flashgen.plan import plan
from flashgen.render import render
from flashgen.spec import Spec

ROW = "(long long)(batch * p.heads + head) * q_len()"
ROWS = "array + batch * strides.batch + head * strides.head"
TENSORS = {"bias": {"shape": ["b", "hq", "q_len", "kv_len"], "dtype": "float32"}}


@functools.cache
def text(dtype, arch):
    spec = Spec(head_dim=64, dtype=dtype, score="s + bias[b, h, q_idx, kv_idx]", mask="causal", tensors=TENSORS, outputs=["o", "lse"])
    return render(plan(spec, arch)).text


@pytest.mark.parametrize(
    ("arch", "dtype", "right", "wrong", "product"),
    [
        ("sm_80", "float16", ROW, ROW.removeprefix("(long long)"), "(batch * p.heads + head) * q_len()"),
        ("sm_80", "float16", "(first + row) * strides.row", "(first + row) * int(strides.row)", "(first + row) * int(strides.row)"),
        ("sm_80", "float16", ROWS, ROWS.replace("head * strides", "head * (int)strides"), "head * (int)strides.head"),
        ("sm_90a", "float32", "(long long)index * (K_BYTES / 2)", "index * (K_BYTES / 2)", "index * (K_BYTES / 2)"),
        ("sm_90a", "float32", "const long long index = key_tile", "const int index = key_tile", "index * (K_BYTES / 2)"),
    ],
)
def test_products_of_ints(arch, dtype, right, wrong, product):
    emitted = text(dtype, arch)
    assert right in emitted
    found = [finding.what for finding in int_products(emitted.replace(right, wrong))]
    assert any(what.startswith(f"`{product}` is a product of ints") for what in found)
    assert not int_products(emitted)


@pytest.mark.parametrize(
    ("arch", "dtype", "right", "wrong"),
    [
        ("sm_80", "float16", f"return {ROWS}", f"const int at = {ROWS.removeprefix('array + ')}; return array + at"),
        ("sm_80", "float16", "long long at = 0, axis = 0", "int at = 0, axis = 0"),
        ("sm_80", "float16", "long long row(int head", "int row(int head"),
        ("sm_90a", "float32", "const long long index = key_tile", "const int index = key_tile"),
        ("sm_90a", "float32", "long long key_tile(", "int key_tile("),
    ],
)
def test_numbers_of_64_bits_in_32(arch, dtype, right, wrong):
    emitted = text(dtype, arch)
    assert right in emitted
    assert narrowings(emitted.replace(right, wrong))
    assert not narrowings(emitted)
