"""Runs of mma.sync: where the lanes need not meet at each product, and that nobody can tell."""

import re

import numpy as np
import pytest

from flashgen.emulate import EmulationFault, HostKernel
from flashgen.emulate.series import BEGIN, with_series
from tests.emulate.kernels import kernel_text, record

MMA = '__device__ __forceinline__ void mma(float* d, u32 a) {\n  asm("mma.sync.aligned"\n    : "+f"(d[0]) : "r"(a));\n}\n'
PARAMS = "const u32* a; float* d;"
BODY = """\
  u32 a[4];
  float d[16] = {};
  for (int i = 0; i < 4; ++i) a[i] = p.a[4 * threadIdx.x + i];
@PRODUCTS@
  for (int i = 0; i < 16; ++i) p.d[16 * threadIdx.x + i] = d[i];
"""
RUN = "  for (int k = 0; k < 3; ++k) {\n    for (int i = 0; i < 4; ++i) ptx::mma_f16(d + 4 * i, a, a[i], a[k]);\n  }"
ONE_BY_ONE = RUN.replace("\n  }", " d[0] += 0.0f;\n  }")


@pytest.mark.parametrize(
    "function",
    [
        "void f(float* d) {R ptx::mma(d, 1); ptx::mma(d + 4, 2); }",
        "void f(float* d) {<< for (;;) { if (d2) { ptx::mma(d, 1); } ptx::mma(d, 2); }>> d[0] = 1; }",
        "void f(float* d) { d[0] = 1;<<\n#pragma unroll\nfor (int i = 0; i < 4; ++i)\n  for (;;) { ptx::mma(d, f(1)); }>> d[0] = 1; }",
        "void f(float* d) { for (int i = d[0];;) {R ptx::mma(d, 1); } d[0] = 1; }",
        "void f(float* d) { for (int i = d[0];;)<< for (;;) { ptx::mma(d, 1); }>> d[0] = 1; }",
        "void f(float* d) { if (x) {R ptx::mma(d, 1); } d[0] = 1; }",
        "void f(float* d, float* e) { {R ptx::mma(d, 1); } {R ptx::mma(e, 2); } d[0] = e[0]; }",
        "void f(float* d) {R ptx::mma(d, 1); // to {d\n }",
        "void f(float* d) { ptx::mma(d, d[1]); }",
        "void f(float* d) { ptx::ldmatrix(d); }",
    ],
)
def test_a_run_names_its_accumulators_in_products_alone(function):
    text = f"{MMA}__device__ {function}\n"
    plain = re.sub("(?<={)R|<<|>>", "", text)
    marked = text.replace("{R", "{" + BEGIN).replace("<<", " {" + BEGIN).replace(">>", " }")
    assert with_series(plain) == marked


def launch(products: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    a, d = rng.standard_normal((32, 4, 2)).astype(np.float16), np.zeros((32, 16), np.float32)
    text = kernel_text(PARAMS, BODY.replace("@PRODUCTS@", products), threads=32)
    assert (BEGIN in with_series(text)) == ("d[0]" not in products)
    HostKernel(text).launch(1, 32, 0, record(PARAMS, a=a, d=d))
    return d


@pytest.mark.parametrize("lane", [0, 1, 31])
def test_products_of_a_run_are_those_done_one_by_one(lane):
    product = "ptx::mma_f16(d + 4 * i, a, a[i], a[k]);"
    change = product, f"{{ {product} if (threadIdx.x == {lane} && i == 1) a[k] ^= 0x100; }}"  # of what others share
    assert launch(RUN).any()
    assert (launch(RUN) == launch(ONE_BY_ONE)).all()
    assert (launch(RUN.replace(*change)) != launch(RUN)).any()
    assert (launch(RUN.replace(*change)) == launch(RUN.replace(*change).replace("0x100;", "0x100; d[0] += 0.0f;"))).all()


@pytest.mark.parametrize("products", [RUN, ONE_BY_ONE])
@pytest.mark.parametrize("change", [("k < 3", "k < (threadIdx.x ? 3 : 2)"), ("ptx::mma", "if (threadIdx.x != i) ptx::mma")])
def test_lanes_that_go_another_way_are_found(products, change):
    with pytest.raises(EmulationFault, match="the warp diverged"):
        launch(products.replace(*change) + "\n  __syncwarp();")
