// What these kernels share: barriers and tiles by their numbers in shared memory, and instructions that no emitted kernel uses.
struct Params {
  TensorMap map, to, line, floats;   // of `in`, of `out` and, a row a box, of both: 32 columns each
  const u16* in;                     // [500, 64] bfloat16
  float* out;                        // [256, 64] bfloat16, or float32
  float* work;                       // 4096 floats that nobody has written
  u32* flag;                         // 8 words, zero
  int fault, bytes;                  // what is wrong, 0 or below if nothing; bytes of shared memory
};
constexpr u32 TILE = 64 * 64 * 2, ONE = 0x3F803F80;   // bytes; 1.0 twice

namespace ptx {
__device__ __forceinline__ void mbarrier_inval(u32 bar) { asm volatile("mbarrier.inval.shared::cta.b64 [%0];" :: "r"(bar) : "memory"); }
template <int PENDING> __device__ __forceinline__ void stores_read() { asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(PENDING) : "memory"); }
__device__ __forceinline__ void bulk_store(void* to, u32 from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" :: "l"(to), "r"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void store_release(u32* at, u32 x) { asm volatile("st.release.gpu.global.u32 [%0], %1;" :: "l"(at), "r"(x) : "memory"); }
__device__ __forceinline__ void store_release_cta(u32* at, u32 x) { asm volatile("st.release.cta.global.u32 [%0], %1;" :: "l"(at), "r"(x) : "memory"); }
__device__ __forceinline__ void store_relaxed(u32* at, u32 x) { asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" :: "l"(at), "r"(x) : "memory"); }
__device__ __forceinline__ void store_volatile(u32* at, u32 x) { asm volatile("st.volatile.global.u32 [%0], %1;" :: "l"(at), "r"(x) : "memory"); }
__device__ __forceinline__ u32 load_acquire(const u32* at) {
  u32 x;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(at) : "memory");
  return x;
}
__device__ __forceinline__ u32 load_acquire_cta(const u32* at) {
  u32 x;
  asm volatile("ld.acquire.cta.global.u32 %0, [%1];" : "=r"(x) : "l"(at) : "memory");
  return x;
}
__device__ __forceinline__ u32 load_relaxed(const u32* at) {
  u32 x;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(at) : "memory");
  return x;
}
__device__ __forceinline__ u32 load_volatile(const u32* at) {
  u32 x;
  asm volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(x) : "l"(at) : "memory");
  return x;
}
__device__ __forceinline__ u32 rank() { u32 x; asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(x)); return x; }
__device__ __forceinline__ u32 mapa(u32 at, u32 rank) { u32 x; asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(x) : "r"(at), "r"(rank)); return x; }
__device__ __forceinline__ void cluster_mbarrier_arrive(u32 bar) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" :: "r"(bar) : "memory");
}
__device__ __forceinline__ void cluster_store(u32 at, u32 x) { asm volatile("st.shared::cluster.u32 [%0], %1;" :: "r"(at), "r"(x) : "memory"); }
__device__ __forceinline__ u32 cluster_load(u32 at) { u32 x; asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(x) : "r"(at) : "memory"); return x; }
__device__ __forceinline__ void store_async(u32 at, u32 x, u32 bar) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" :: "r"(at), "r"(x), "r"(bar) : "memory");
}
__device__ __forceinline__ void cluster_copy(u32 to, u32 from, int bytes, u32 bar) {
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
    :: "r"(to), "r"(from), "r"(bytes), "r"(bar) : "memory");
}
__device__ __forceinline__ void tma_load_both(u32 to, const TensorMap& map, u32 bar, int row) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4, %5, %6}], [%2], %7;"
    :: "r"(to), "l"(&map), "r"(bar), "r"(0), "r"(row), "r"(0), "r"(0), "h"(u16(3)) : "memory");
}
}  // namespace ptx

__device__ __forceinline__ u32 base() {
  extern __shared__ __align__(1024) unsigned char memory[];
  return __cvta_generic_to_shared(memory);
}
__device__ __forceinline__ u32 bar(int i) { return base() + 8 * i; }
__device__ __forceinline__ u32 tile(int i) { return base() + 1024 + TILE * i; }

// Barriers 0, 1, ... with these counts, known to all.
template <int... COUNTS> __device__ __forceinline__ void begin() {
  int i = 0;
  if (threadIdx.x == 0) (ptx::mbarrier_init(bar(i++), COUNTS), ...), ptx::mbarrier_init_fence();
  __syncthreads();
}
__device__ __forceinline__ void wait(int b, int parity) { ptx::mbarrier_wait(bar(b), parity & 1); }
__device__ __forceinline__ void arrive(int b) { ptx::mbarrier_arrive(bar(b)); }
// Rows 64 * i on of `in`, by one thread.
__device__ __forceinline__ void load(const Params& p, int b, u32 to, int i) { ptx::tma_load(to, p.map, bar(b), 0, 64 * i, 0, 0); }
__device__ __forceinline__ void fetch(const Params& p, int b, u32 to, int i) { ptx::mbarrier_expect(bar(b), TILE), load(p, b, to, i); }
// A tile, by one thread, as rows 64 * i on of `out`.
__device__ __forceinline__ void store(const Params& p, u32 from, int i) {
  ptx::tma_store_as(ptx::passing(), p.to, from, 0, 64 * i, 0, 0);
  ptx::tma_store_commit();
}
// A tile, by so many threads, each its own chunks of 16 bytes.
template <int THREADS> __device__ __forceinline__ void fill(u32 to, u32 x) {
  for (u32 i = threadIdx.x % THREADS; i < TILE / 16; i += THREADS) ptx::store_shared_x4(to + 16 * i, x, x, x, x);
}
__device__ __forceinline__ u32 word(u32 of, u32 i = threadIdx.x) { return ptx::load_shared(of + 4 * i); }

// d[64 x 64] += a b^T, 16 columns of each. A tile's descriptor: rows of 128 bytes, swizzled.
__device__ __forceinline__ u64 operand(u32 at) { return u64(at >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62; }
__device__ __forceinline__ void multiply(float* d, u32 a, u32 b) { ptx::product_qk(d, operand(a), operand(b), 1); }
