// Blocks of a cluster (PTX ISA 9.0, 5.2): addresses of each other's shared memory (9.7.9.24, mapa), and what goes there.

__device__ __forceinline__ u32 address_in(u32 at, u32 rank) { u32 x; asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(x) : "r"(at), "r"(rank)); return x; }

__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }

__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

__device__ __forceinline__ float load_there(u32 at) { float x; asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(at) : "memory"); return x; }

// In another block. It tells what products have read, not what was written: at the scope of the cluster it would wait for all of memory.
__device__ __forceinline__ void mbarrier_arrive_there(u32 bar) { asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" :: "r"(bar) : "memory"); }

// Both complete on an mbarrier of the block that they go to.
__device__ __forceinline__ void send_x4(u32 to, u32 x, u32 y, u32 z, u32 w, u32 bar) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.u32 [%0], {%1, %2, %3, %4}, [%5];"
    :: "r"(to), "r"(x), "r"(y), "r"(z), "r"(w), "r"(bar) : "memory");
}

__device__ __forceinline__ void send_bulk(u32 to, u32 from, int bytes, u32 bar) {
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
    :: "r"(to), "r"(from), "r"(bytes), "r"(bar) : "memory");
}
