// A copy of a matrix by TMA, tile by tile: a thread loads a tile of 64 x 64 into shared memory, all wait for it, the thread stores it.
using u32 = unsigned int;
using u64 = unsigned long long;
struct __align__(64) TensorMap { unsigned char bytes[128]; };
struct Params {
  TensorMap from, to;
  int tiles;                                           // of 64 columns, in a row
};
constexpr int TILE_BYTES = 64 * 64 * 2;

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

__device__ __forceinline__ void tma_store(const TensorMap& map, u32 from, int column, int row) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];"
    :: "l"(&map), "r"(from), "r"(column), "r"(row) : "memory");
}

__device__ __forceinline__ void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

__device__ __forceinline__ void tma_store_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Block i copies rows 64 * i on. Two stages: a tile is loaded while the one before is stored.
extern "C" __global__ void __launch_bounds__(32) copy(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const u32 stages = __cvta_generic_to_shared(memory), full = stages + 2 * TILE_BYTES;
  const int row = 64 * blockIdx.x;
  if (threadIdx.x != 0) return;
  mbarrier_init(full, 1);
  mbarrier_init(full + 8, 1);
  mbarrier_init_fence();
  for (int i = 0; i < p.tiles + 1; ++i) {
    if (i < p.tiles) {
      if (i >= 2) tma_store_wait();                    // the stage is free once its last store has read it
      mbarrier_expect(full + i % 2 * 8, TILE_BYTES);
      tma_load(stages + i % 2 * TILE_BYTES, p.from, full + i % 2 * 8, 64 * i, row);
    }
    if (i > 0) {
      const int stage = (i - 1) % 2;
      mbarrier_wait(full + stage * 8, (i - 1) / 2 % 2);
      tma_store(p.to, stages + stage * TILE_BYTES, 64 * (i - 1), row);
      tma_store_commit();
    }
  }
  tma_store_wait();
}
