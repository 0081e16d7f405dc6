"""Instructions of a warp or a thread, each against what the PTX ISA says of it."""

import ml_dtypes
import numpy as np
import pytest

from flashgen.emulate import EmulationFault, HostKernel
from tests.emulate.kernels import bits, kernel_text, record

MATRICES_PARAMS = "const u32* in; u32* out; int row;"
MATRICES = """
  const u32 at = shared + 16 * threadIdx.x;
  ptx::store_shared_x4(at, p.in[4 * threadIdx.x], p.in[4 * threadIdx.x + 1], p.in[4 * threadIdx.x + 2], p.in[4 * threadIdx.x + 3]);
  __syncwarp();
  u32 r[4] = {};
  const u32 lane = threadIdx.x % (8 * @N@), from = shared + p.row * lane;
  asm volatile("ldmatrix.sync.aligned.m8n8.x@N@@TRANS@.shared.b16 {@REGISTERS@}, [%@N@];" : @OUTPUTS@ : "r"(from) : "memory");
  __syncwarp();
  asm volatile("stmatrix.sync.aligned.m8n8.x@N@@BACK@.shared.b16 [%0], {@SOURCES@};" :: "r"(shared + 16 * lane), @INPUTS@ : "memory");
  __syncwarp();
  for (int i = 0; i < 4; ++i) p.out[32 * i + threadIdx.x] = r[i], p.out[128 + 4 * threadIdx.x + i] = ptx::load_shared(at + 4 * i);
"""


def matrices(n, trans, back, row=16):
    parts = {
        "N": str(n),
        "TRANS": ".trans" * trans,
        "BACK": ".trans" * back,
        "REGISTERS": ", ".join(f"%{i}" for i in range(n)),
        "OUTPUTS": ", ".join(f'"=r"(r[{i}])' for i in range(n)),
        "SOURCES": ", ".join(f"%{i + 1}" for i in range(n)),
        "INPUTS": ", ".join(f'"r"(r[{i}])' for i in range(n)),
    }
    body = MATRICES
    for name, text in parts.items():
        body = body.replace(f"@{name}@", text)
    x = np.random.default_rng(0).integers(0, 1 << 16, (4, 8, 8)).astype(np.uint16)
    out = np.zeros((2, 4, 8, 8), np.uint16)
    kernel = HostKernel(kernel_text(MATRICES_PARAMS, body))
    kernel.bank_conflicts()
    kernel.launch(1, 32, 1024, record(MATRICES_PARAMS, **{"in": x}, out=out, row=row))
    return x, *out, kernel.bank_conflicts()


@pytest.mark.parametrize(("n", "trans", "back"), [(1, 0, 1), (2, 1, 0), (4, 0, 0), (4, 1, 1)])
def test_ldmatrix_and_stmatrix(n, trans, back):
    x, registers, stored, conflicts = matrices(n, trans, back)
    want = x.swapaxes(1, 2) if trans else x
    assert (registers[:n] == want[:n]).all()  # lane l: row l / 4, columns 2 (l % 4) and the next
    assert (stored[:n] == (want.swapaxes(1, 2) if back else want)[:n]).all()
    assert (stored[n:] == x[n:]).all()
    assert conflicts == 0


def test_bank_conflicts_are_counted():
    assert matrices(1, 0, 1, row=128 // 2)[3] == 6  # of 8 rows 64 bytes apart, pairs of which lie in the same banks: 2 banks of 16 bytes


def test_matrix_rows_are_aligned():
    with pytest.raises(EmulationFault, match=r"ldmatrix at shared address .*: not 16-byte aligned"):
        matrices(1, 0, 1, row=8)


PRODUCT_PARAMS = "const u32* a; const u32* b; const float* c; float* out;"
PRODUCT = """
  u32 a[4];
  float d[4];
  for (int i = 0; i < 4; ++i) a[i] = p.a[32 * i + threadIdx.x], d[i] = p.c[32 * i + threadIdx.x];
  ptx::mma_@T@(d, a, p.b[threadIdx.x], p.b[32 + threadIdx.x]);
  for (int i = 0; i < 4; ++i) p.out[32 * i + threadIdx.x] = d[i];
"""


@pytest.mark.parametrize("element", ["f16", "bf16"])
def test_mma_m16n8k16(element):
    rng, lane = np.random.default_rng(0), np.arange(32)
    a, b, c = (rng.integers(-8, 8, shape) for shape in ((16, 16), (16, 8), (16, 8)))  # exact in both types and in float32

    def pairs(x, y):
        return bits(x, element).astype(np.uint32) | bits(y, element).astype(np.uint32) << 16

    def of_d(x):
        return np.stack([x[row + i // 2 * 8, column + i % 2] for i in range(4)])

    row, column = lane // 4, lane % 4 * 2  # PTX ISA 9.0, 9.7.14.5.8, fragments of m16n8k16
    a_rows, a_columns = zip(*[(row + 8 * (r % 2), column + 8 * (r // 2)) for r in range(4)], strict=True)
    fragment_a = np.stack([pairs(a[i, j], a[i, j + 1]) for i, j in zip(a_rows, a_columns, strict=True)])
    fragment_b = np.stack([pairs(b[column + 8 * r, row], b[column + 8 * r + 1, row]) for r in range(2)])
    start, out = of_d(c).astype(np.float32), np.zeros((4, 32), np.float32)
    text = kernel_text(PRODUCT_PARAMS, PRODUCT.replace("@T@", element))
    HostKernel(text).launch(1, 32, 0, record(PRODUCT_PARAMS, a=fragment_a, b=fragment_b, c=start, out=out))
    assert (out == of_d(a @ b + c)).all()


NUMBERS_PARAMS = "const float* in; float* out; u32* words; i64* wide;"
NUMBERS = """
  const float x = p.in[threadIdx.x], y = p.in[threadIdx.x ^ 1];
  float* out = p.out + 8 * threadIdx.x;
  out[0] = ptx::exp2(x), out[1] = ptx::log2(x), out[2] = ptx::tanh(x), out[3] = ptx::sqrt(x);
  asm("rcp.approx.f32 %0, %1;" : "=f"(out[4]) : "f"(x));
  out[5] = ptx::minimum(x, y), out[6] = ptx::maximum(x, y), out[7] = fmaxf(x, y);
  p.words[2 * threadIdx.x] = ptx::bf16x2(x, y), p.words[2 * threadIdx.x + 1] = ptx::f16x2(x, y);
  asm("mul.wide.s32 %0, %1, %2;" : "=l"(p.wide[threadIdx.x]) : "r"(__float_as_int(x)), "r"(__float_as_int(y)));
"""


def test_numbers():
    rng = np.random.default_rng(0)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, 1e-40, -126.5, -127.0, 127.99, 128.0, 3e38, -3e38, 65504, 65520, 1e-8]
    x = np.concatenate([np.array(special, np.float32), rng.standard_normal(1008).astype(np.float32) * 10])
    y = x.reshape(-1, 2)[:, ::-1].reshape(-1)
    out, words, wide = np.zeros((1024, 8), np.float32), np.zeros((1024, 2), np.uint32), np.zeros(1024, np.int64)
    HostKernel(kernel_text(NUMBERS_PARAMS, NUMBERS)).launch(
        1, 1024, 0, record(NUMBERS_PARAMS, **{"in": x}, out=out, words=words, wide=wide)
    )
    with np.errstate(all="ignore"):
        d = x.astype(np.float64)
        wanted = [np.exp2(d), np.log2(d), np.tanh(d), np.sqrt(d), 1 / d, np.minimum(x, y), np.maximum(x, y), np.fmax(x, y)]
        wanted[0] = np.where(np.exp2(d) < 2.0**-126, 0, wanted[0])
        for column, want in zip(out.T, wanted, strict=True):
            np.testing.assert_allclose(column, want.astype(np.float32), rtol=3e-7, atol=1e-44)
        pairs = np.stack([x, y], 1)
        for found, dtype in ((words[:, 0], ml_dtypes.bfloat16), (words[:, 1], np.float16)):
            np.testing.assert_array_equal(
                np.ascontiguousarray(found).view(dtype).reshape(-1, 2).astype(np.float32), pairs.astype(dtype).astype(np.float32)
            )
    assert (wide == x.view(np.int32).astype(np.int64) * y.view(np.int32)).all()


COPY_PARAMS = "const float* in; float* out; int shift, to, bytes, read, swap, pending, wait, sync, drain;"
COPY = """
  const u32 at = shared + 16 * threadIdx.x + p.to;
  const float* from = p.in + 4 * threadIdx.x + p.shift;
  const int read = threadIdx.x == 5 ? p.read : p.bytes;
  if (p.bytes == 16) asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(at), "l"(from), "r"(read) : "memory");
  if (p.bytes == 8) asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" :: "r"(at), "l"(from), "r"(read) : "memory");
  if (p.bytes == 4) asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" :: "r"(at), "l"(from), "r"(read) : "memory");
  ptx::copy_commit();
  if (p.pending == 2) ptx::copy_commit();
  if (p.wait == 0) ptx::copy_wait<0>();
  if (p.wait == 1) ptx::copy_wait<1>();
  if (p.wait == 3) asm volatile("cp.async.wait_all;" ::: "memory");
  if (p.sync) __syncthreads();
  const u32 read_at = at + (p.swap ? threadIdx.x < 32 ? 512 : -512 : 0);
  for (int i = 0; i < p.bytes / 4; ++i) p.out[4 * threadIdx.x + i] = __uint_as_float(ptx::load_shared(read_at + 4 * i));
  if (p.drain) ptx::copy_wait<0>();
"""
UNORDERED = "race: warp . reads smem.*, (never written|written by cp.async of warp . with no wait in between)"


def copied(seed=0, **values):
    x, y = np.random.default_rng(0).random((65, 4), np.float32), np.zeros((64, 4), np.float32)
    values = {"bytes": 16, "read": 8, "pending": 1} | values
    HostKernel(kernel_text(COPY_PARAMS, COPY)).launch(1, 64, 1040, record(COPY_PARAMS, **{"in": x}, out=y, **values), seed)
    x = x[:64].copy()
    x[5, values["read"] // 4 :] = 0  # zero fill
    x[:, values["bytes"] // 4 :] = 0  # not copied
    return x, y


@pytest.mark.parametrize("seed", range(4))
def test_copies_are_known_to_their_thread_after_its_wait_and_to_others_after_a_barrier(seed):
    for size, read in ((16, 8), (16, 0), (8, 8), (8, 4), (4, 0)):
        x, y = copied(seed, bytes=size, read=read)
        assert (x == y).all()
    x, y = copied(seed, sync=1, swap=1)
    assert (x == np.roll(y, 32, 0)).all()
    for careless in ({"swap": 1}, {"wait": 4, "drain": 1}, {"wait": 4, "sync": 1, "drain": 1}):
        with pytest.raises(EmulationFault, match=UNORDERED):
            copied(seed, **careless)


def test_copies_wait_by_groups():
    x, y = copied(pending=2, wait=1)  # an empty group is a group: the copies are in the older one
    assert (x == y).all()
    with pytest.raises(EmulationFault, match=r"written by cp.async"):
        copied(wait=1, drain=1)
    x, y = copied(wait=3)
    assert (x == y).all()


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"shift": 1}, "16 bytes at global address .*: not 16-byte aligned"),
        ({"to": 8}, "cp.async of 16 bytes to shared address .*: not aligned"),
        ({"read": 20}, "cp.async of 16 bytes from 20"),
    ],
)
def test_copies_are_aligned_and_no_longer_than_their_destination(change, found):
    with pytest.raises(EmulationFault, match=found):
        copied(**change)


def test_cg_takes_16_bytes_only():
    text = kernel_text(COPY_PARAMS, COPY).replace("cp.async.ca.shared.global [%0], [%1], 8", "cp.async.cg.shared.global [%0], [%1], 8")
    with pytest.raises(EmulationFault, match=r"cp.async.cg of 8 bytes"):
        HostKernel(text).launch(1, 32, 1024, record(COPY_PARAMS, **{"in": np.zeros(256, np.float32)}, bytes=8))


UNAWAITED = kernel_text("const float* in;", "  ptx::copy_async_16(shared, p.in, true);\n  ptx::copy_commit();")


def test_copies_that_nobody_awaits():
    with pytest.raises(EmulationFault, match="the block ended with copies that thread 0 never waited for"):
        HostKernel(UNAWAITED).launch(1, 1, 1024, record("const float* in;", **{"in": np.zeros(8, np.float32)}))
