// c = a b^T by warpgroup products: a block multiplies 64 rows of a by all 64 rows of b, 64 columns each, sums in float32.
using u32 = unsigned int;
using u64 = unsigned long long;
struct __align__(64) TensorMap { unsigned char bytes[128]; };
struct Params {
  TensorMap a, b;
  float* c;                                            // [rows of a, 64]
};
constexpr int TILE_BYTES = 64 * 64 * 2, B = TILE_BYTES, FULL = 2 * TILE_BYTES;

__device__ __forceinline__ void mbarrier_init(u32 bar, int count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(count)); }

__device__ __forceinline__ void mbarrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;"); }

__device__ __forceinline__ void mbarrier_expect(u32 bar, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(bytes) : "memory");
}

__device__ __forceinline__ void mbarrier_wait(u32 bar, int parity) {
  asm volatile("{ .reg .pred p; WAIT: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @p bra DONE; bra WAIT; DONE: }"
    :: "r"(bar), "r"(parity) : "memory");
}

__device__ __forceinline__ void tma_load(u32 to, const TensorMap& map, u32 bar, int column, int row) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
    :: "r"(to), "l"(&map), "r"(bar), "r"(column), "r"(row) : "memory");
}

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }

// d[64 x 64] (+)= a b^T, 16 columns of each, by their descriptors.
__device__ __forceinline__ void product(float* d, u64 a, u64 b, int accumulate) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
    "}, %32, %33, p, 1, 1, 0, 0; }"
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
      "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
      "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
      "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
    : "l"(a), "l"(b), "r"(accumulate));
}

// A tile's descriptor: rows of 128 bytes, swizzled; eight of them, 1024 bytes, to the next eight.
__device__ __forceinline__ u64 operand(u32 at) { return u64(at >> 4) | 1ull << 16 | u64(1024 >> 4) << 32 | 1ull << 62; }

extern "C" __global__ void __launch_bounds__(128) multiply(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const u32 a = __cvta_generic_to_shared(memory), b = a + B, full = a + FULL;
  if (threadIdx.x == 0) {
    mbarrier_init(full, 1);
    mbarrier_init_fence();
    mbarrier_expect(full, 2 * TILE_BYTES);
    tma_load(a, p.a, full, 0, 64 * blockIdx.x);
    tma_load(b, p.b, full, 0, 0);
  }
  __syncthreads();
  mbarrier_wait(full, 0);
  float d[32] = {};
  wgmma_fence();
  for (int k = 0; k < 4; ++k) product(d, operand(a + 32 * k), operand(b + 32 * k), k > 0);
  wgmma_commit();
  wgmma_wait();
  const int row = 64 * blockIdx.x + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
  for (int i = 0; i < 32; ++i) p.c[(long long)(row + i / 2 % 2 * 8) * 64 + i / 4 * 8 + column + i % 2] = d[i];
}
