"""TMA loads and warpgroup products together: every layout that a descriptor can name gives the matrix product."""

import numpy as np
import pytest

from flashgen.emulate import EmulationFault, HostKernel, tensor_map
from tests.emulate.kernels import bits, kernel_text, record

K = 32  # of the product: two instructions
B_AT = 49152  # bytes from the start to b; a from 1024 on, the barrier at 0
PARAMS = (
    "TensorMap a, b; u64 a_bits, b_bits; const u32* fragments; float* out;"
    "int a_column, a_boxes, a_bytes, a_step, b_column, b_boxes, b_bytes, b_step;"
)
BODY = """
  const u32 a = shared + 1024, b = shared + 49152;
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(shared, 1);
    ptx::mbarrier_init_fence();
    ptx::mbarrier_expect(shared, p.a_boxes * p.a_bytes + p.b_boxes * p.b_bytes);
    for (int i = 0; i < p.a_boxes; ++i) load(a + i * p.a_bytes, p.a, shared, p.a_column * i, 0);
    for (int i = 0; i < p.b_boxes; ++i) load(b + i * p.b_bytes, p.b, shared, p.b_column * i, 0);
  }
  __syncthreads();
  ptx::mbarrier_wait(shared, 0);
  float d[N / 2];
  for (int i = 0; i < N / 2; ++i) d[i] = 1e30f;
  u32 fragment[8];
  for (int i = 0; i < 8; ++i) fragment[i] = FROM_REGISTERS ? p.fragments[8 * threadIdx.x + i] : 0;
  ptx::wgmma_fence();
  for (int k = 0; k < 2; ++k) product(d, fragment + 4 * k, p.a_bits + (a + k * p.a_step >> 4), p.b_bits + (b + k * p.b_step >> 4), k > 0);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  for (int i = 0; i < N / 2; ++i) p.out[threadIdx.x * (N / 2) + i] = d[i];
"""
LOAD = """
__device__ __forceinline__ void load(u32 to, const TensorMap& map, u32 bar, int column, int row) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
    :: "r"(to), "l"(&map), "r"(bar), "r"(column), "r"(row) : "memory");
}
"""


def product_text(n, element, a, transposed):
    """`product`, and the constants of the kernel; `a` is k (in shared memory, dense along k), m (dense along m) or registers."""
    count = n // 2
    accumulators = ", ".join(f"%{i}" for i in range(count))
    sources = [f"%{count + i}" for i in range(4)] if a == "registers" else [f"%{count}"]
    after = count + len(sources)
    operand = "{" + ", ".join(sources) + "}" if a == "registers" else sources[0]
    flags = f"{transposed}" if a == "registers" else f"{int(a == 'm')}, {transposed}"
    inputs = ", ".join(f'"r"(a[{i}])' for i in range(4)) if a == "registers" else '"l"(at)'
    outputs = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    name = f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{element}.{element}"
    return (
        f"{LOAD}constexpr int N = {n}, FROM_REGISTERS = {int(a == 'registers')};\n"
        "__device__ __forceinline__ void product(float* d, const u32* a, u64 at, u64 b, int accumulate) {\n"
        f'  asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{after + 1}, 0; {name} "\n'
        f'    "{{{accumulators}}}, {operand}, %{after}, p, 1, 1, {flags}; }}"\n'
        f"    : {outputs}\n"
        f'    : {inputs}, "l"(b), "r"(accumulate));\n}}\n'
    )


def operand(x, dense_along_k, width):
    """An operand as TMA brings it: the map; columns of a box, boxes, bytes of one; descriptor bits; bytes from one k step to the next."""
    rows, columns = x.shape
    box_columns = max(8, width // 2)
    boxes, row_bytes = -(-columns // box_columns), box_columns * 2
    box_bytes = rows * row_bytes
    group = 8 * row_bytes  # eight rows
    if not dense_along_k:
        leading, stride, step = box_bytes, group, 2 * group
    elif width:
        leading, stride, step = 16, group, 32 if width > 32 else box_bytes
    else:
        leading, stride, step = box_bytes, group, 2 * box_bytes
    code = {128: 1, 64: 2, 32: 3, 0: 0}[width]
    return (
        tensor_map(x, (rows, box_columns), width),
        box_columns,
        boxes,
        box_bytes,
        leading >> 4 << 16 | stride >> 4 << 32 | code << 62,
        step,
    )


def run(n, element, a, transposed, width_a, width_b, seed):
    rng = np.random.default_rng(n + seed)
    left, right = rng.integers(-4, 5, (64, K)), rng.integers(-4, 5, (K, n))
    x = np.ascontiguousarray(bits(left.T if a == "m" else left, element))
    y = np.ascontiguousarray(bits(right if transposed else right.T, element))
    map_a, a_column, a_boxes, a_bytes, a_bits, a_step = operand(x, a != "m", width_a)
    map_b, b_column, b_boxes, b_bytes, b_bits, b_step = operand(y, not transposed, width_b)
    t, r = np.arange(128)[:, None, None], np.arange(4)[None, None, :]
    row = t // 32 * 16 + t % 32 // 4 + 8 * (r & 1)
    column = np.arange(2)[None, :, None] * 16 + t % 4 * 2 + 8 * (r >> 1)
    words = bits(left, element).astype(np.uint32)
    fragments = np.ascontiguousarray(words[row, column] | words[row, column + 1] << 16)  # PTX ISA 9.0, 9.7.15.5.1, register fragments
    out = np.zeros((128, n // 2), np.float32)
    values = {"a_bits": a_bits, "b_bits": b_bits, "a_column": a_column, "b_column": b_column, "a_step": a_step, "b_step": b_step}
    values |= {"a": map_a, "b": map_b, "a_bytes": a_bytes, "b_bytes": b_bytes, "fragments": fragments, "out": out}
    values |= {"a_boxes": 0 if a == "registers" else a_boxes, "b_boxes": b_boxes}
    HostKernel(kernel_text(PARAMS, BODY, product_text(n, element, a, transposed))).launch(1, 128, 131072, record(PARAMS, **values), seed)
    t, i = np.arange(128)[:, None], np.arange(n // 2)[None, :]
    return out, (left @ right)[t // 32 * 16 + t % 32 // 4 + 8 * (i // 2 % 2), i // 4 * 8 + t % 4 * 2 + i % 2]


@pytest.mark.parametrize(
    ("n", "element", "a", "transposed", "widths"),
    [
        (64, "bf16", "k", 0, [(128, 128), (64, 32), (32, 64), (0, 0), (128, 0)]),
        (64, "bf16", "m", 1, [(128, 128), (64, 32), (32, 64)]),
        (256, "f16", "registers", 1, [(128, 128), (128, 64)]),
        (8, "f16", "k", 0, [(128, 128), (0, 32)]),
        (24, "bf16", "registers", 0, [(64, 128), (64, 0)]),
        (176, "f16", "m", 0, [(128, 64)]),
    ],
)
@pytest.mark.parametrize("seed", [0, 1, 5])
def test_products(n, element, a, transposed, widths, seed):
    for width_a, width_b in widths:
        out, want = run(n, element, a, transposed, width_a, width_b, seed)
        assert (out == want).all(), (width_a, width_b)


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("ptx::mbarrier_wait(shared, 0);", "", r"race: wgmma of warpgroup 0 reads .*, written by the TMA load of"),
        ("  ptx::wgmma_fence();", "", "wgmma with no wgmma.fence"),
        ("ptx::wgmma_wait<0>();", "", "an accumulator was read before the wait"),
        ("ptx::wgmma_wait<0>();", "d[0] = 1; ptx::wgmma_wait<0>();", "accumulator 0 was written before the wait"),
        ("ptx::wgmma_wait<0>();", "d[0] *= 1.0f + p.a_boxes; ptx::wgmma_wait<0>();", "accumulator 0 was written before the wait"),
        ("ptx::wgmma_wait<0>();", "p.out[0] = fmaf(2, d[3], 1); ptx::wgmma_wait<0>();", "an accumulator was read before the wait"),
        ("ptx::wgmma_wait<0>();", "atomicAdd(p.out, d[3]); ptx::wgmma_wait<0>();", "an accumulator was read before the wait"),
        ("ptx::wgmma_wait<0>();", "ptx::store_shared(shared, __float_as_uint(sqrtf(d[3]))); ptx::wgmma_wait<0>();", "accumulator was read"),
        ("ptx::wgmma_wait<0>();", "fragment[0] = ptx::bf16x2(0.0f, -d[3]); ptx::wgmma_wait<0>();", "an accumulator was read before"),
        ("ptx::wgmma_wait<0>();", "fragment[1] ^= 1; ptx::wgmma_wait<0>();", "a's registers changed before the wait"),
        ("k * p.b_step", "(threadIdx.x == 7) * p.b_step", "the threads of the warpgroup disagree on its operands"),
        ("ptx::mbarrier_init_fence();", "", "used by TMA with no fence.mbarrier_init"),
        (
            "p.b_boxes * p.b_bytes)",
            "p.b_boxes * p.b_bytes / 2)",
            r"smem\+0 \(phase 0, 0 of 1 arrivals and -\d+ bytes missing\): more bytes than announced",
        ),
        ("shared + 49152", "shared + 49160", "TMA at .*: not 128-byte aligned"),
    ],
)
def test_faults(old, new, found, monkeypatch):
    assert old in BODY
    monkeypatch.setattr("tests.emulate.test_wgmma.BODY", BODY.replace(old, new))
    with pytest.raises(EmulationFault, match=found):
        run(24, "bf16", "registers", 0, 64, 128, 0)
