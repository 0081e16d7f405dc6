"""ldmatrix in runs of products: what it loads comes late, the values are those of its own time, and so is what the race checker says."""

import numpy as np
import pytest

from flashgen.emulate import EmulationFault, HostKernel
from flashgen.emulate.series import LATER, with_series
from tests.emulate.kernels import kernel_text, record

DEVICE = """\
__device__ __forceinline__ void mma(float* d, u32 a, u32 b0, u32 b1) {
  asm("mma.sync" :: "r"(b0), "r"(b1)); }
__device__ __forceinline__ void ldmatrix(u32 (&r)[4], u32 row) { asm volatile("ldmatrix" : "=r"(r[0]) : "r"(row)); }
"""
PARAMS = "const u32* a; float* d; int late;"
BODY = """\
  u32 a[4];
  float d[8] = {};
  for (int i = 0; i < 4; ++i) a[i] = p.a[4 * (threadIdx.x % 32) + i];
  for (int i = 0; i < 16; ++i)
    if (threadIdx.x < 32) ptx::store_shared(shared + 4 * threadIdx.x + 128 * i, p.a[4 * threadIdx.x + i % 4] ^ i << 8);
  __syncthreads();
  if (threadIdx.x < 32)
    for (int k = 0; k < 4; ++k) {
      u32 b[4];
      ptx::ldmatrix_x4(b, shared + 512 * k + 16 * threadIdx.x);
      ptx::mma_f16(d, a, b[0], b[1]);
      ptx::mma_f16(d + 4, a, b[2], b[3]);
    }
  for (int i = 0; i < 8; ++i) p.d[8 * threadIdx.x + i] = d[i];
"""
SECOND = "      ptx::mma_f16(d + 4, a, b[2], b[3]);\n"


@pytest.mark.parametrize(
    ("uses", "later"),
    [
        ("ptx::ldmatrix(b, 1); ptx::mma(d, 2, b[0], b[1]);", True),
        ("if (x) ptx::ldmatrix(b, 1); for (;;) { ptx::mma(d, 2, b[2], b[3]); }", True),
        ("ptx::ldmatrix(b, 1); ptx::mma(d, b, 2, 3);", True),
        ("ptx::ldmatrix(b, b[1]); ptx::mma(d, 2, b[0], b[1]);", False),
        ("ptx::ldmatrix(b, 1); ptx::mma(d, b[0], b[0], b[1]);", False),
        ("ptx::ldmatrix(b, 1); ptx::mma(d, 2, b[0], b[1] + 1);", False),
        ("ptx::ldmatrix(b, 1); ptx::mma(d, 2, b[0], y);", False),
        ("ptx::ldmatrix(b, 1); ptx::mma(d, 2, b[0], b[i]);", False),
        ("ptx::ldmatrix(b, 1); f(b); ptx::mma(d, 2, b[0], b[1]);", False),
        ("ptx::ldmatrix(b, 1); ptx::mma(d, 2, b[0], b[1]); d[0] = 1;", False),
    ],
)
def test_what_products_alone_use_may_come_late(uses, later):
    text = f"{DEVICE}__device__ void f(float* d) {{ u32 b[4]; {uses} }}\n"
    assert (f"{LATER} b[4];" in with_series(text)) == later
    assert ("auto b0, auto b1" in with_series(text)) == later


def launch(body: str = BODY, seed: int = 0, late: int = 0, warps: int = 2) -> np.ndarray:
    rng = np.random.default_rng(0)
    a, d = rng.standard_normal((32, 4, 2)).astype(np.float16), np.zeros((32 * warps, 8), np.float32)
    HostKernel(kernel_text(PARAMS, body)).launch(1, 32 * warps, 4096, record(PARAMS, a=a, d=d, late=late), seed)
    return d


def test_values_are_those_of_loads_in_time():
    one_by_one = BODY.replace("b[2], b[3]);", "b[2] | 0u, b[3]);")
    assert [LATER in with_series(kernel_text(PARAMS, body)) for body in (BODY, one_by_one)] == [True, False]
    assert launch().any()
    assert (launch() == launch(one_by_one)).all()


def test_both_operands_may_come_late():
    load = "ptx::ldmatrix_x4(b, shared + 512 * k + 16 * threadIdx.x);\n"
    rows = "u32 c[2][4];\n      for (int i = 0; i < 2; ++i) ptx::ldmatrix_x4(c[i], shared + 512 * i + 16 * threadIdx.x);\n"
    body = BODY.replace(load, load + rows).replace("mma_f16(d, a", "mma_f16(d, c[0]").replace("mma_f16(d + 4, a", "mma_f16(d + 4, c[1]")
    in_time = body.replace(SECOND[6:].replace(", a,", ", c[1],"), SECOND[6:].replace(", a,", ", c[1],") + "      c[0][0] = 0;\n")
    assert [f"{LATER} c[2][4]" in with_series(kernel_text(PARAMS, text)) for text in (body, in_time)] == [True, False]
    assert (launch(body) == launch(in_time)).all()


def test_what_was_loaded_stays_to_the_end_of_the_run():
    load = "ptx::ldmatrix_x4(b, shared + 512 * k + 16 * threadIdx.x);\n"
    more = "for (int i = 0; i < 50; ++i) { u32 c[4]; ptx::ldmatrix_x4(c, shared + 16 * threadIdx.x); ptx::mma_f16(d, a, c[0], c[1]); }\n"
    in_time = more.replace("c[1])", "c[1] | 0u)")
    assert (launch(BODY.replace(load, load + more)) == launch(BODY.replace(load, load + in_time))).all()


OVERWRITE = "      @BARRIER@;\n      if (threadIdx.x >= 32) ptx::store_shared(shared + 512 * k + 16 * (threadIdx.x % 32), 0);\n"
OVERWRITTEN = BODY.replace("if (threadIdx.x < 32)\n", "").replace("16 * threadIdx.x)", "16 * (threadIdx.x % 32))")
OVERWRITTEN = OVERWRITTEN.replace(SECOND, SECOND + OVERWRITE)


@pytest.mark.parametrize("seed", range(4))
def test_a_barrier_orders_what_comes_late(seed):
    assert LATER in with_series(kernel_text(PARAMS, OVERWRITTEN))
    assert (launch(OVERWRITTEN.replace("@BARRIER@", "__syncthreads()"), seed)[:32] == launch()[:32]).all()
    with pytest.raises(EmulationFault, match=r"race: warp \d (reads|writes) smem\+\w+, (still read|written) by") as caught:
        launch(OVERWRITTEN.replace("@BARRIER@", ""), seed)
    assert "ldmatrix_x4(b, " in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("ptx::ldmatrix_x4(b", "if (threadIdx.x != 3) ptx::ldmatrix_x4(b", "the warp diverged"),
        ("ptx::ldmatrix_x4(b", "if (threadIdx.x == 3 ? k != 1 : k != 2) ptx::ldmatrix_x4(b", "the warp diverged"),
        ("ptx::ldmatrix_x4(b", "if (k) ptx::ldmatrix_x4(b", "mma.sync of registers that nothing was loaded into"),
        ("16 * threadIdx.x)", "16 * threadIdx.x + 4)", "ldmatrix at shared address .*: not 16-byte aligned"),
        ("512 * k", "4096 * k", r"warp 0 reads smem\+0x1000, outside the block's 4096 bytes"),
        ("512 * k", "768 * k", r"warp 0 reads smem\+0x900, never written"),
    ],
)
def test_faults_are_those_of_loads_in_time(old, new, fault):
    with pytest.raises(EmulationFault, match=fault):
        launch(BODY.replace(old, new))
