// Bulk tensor copies (PTX ISA 9.0, 9.7.9.27): a box of rows, coordinates innermost first; outside the array reads give zero and writes are dropped.

__device__ __forceinline__ void tma_load(u32 to, const TensorMap& map, u32 bar, int column, int row, int head, int batch) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];"
    :: "r"(to), "l"(&map), "r"(bar), "r"(column), "r"(row), "r"(head), "r"(batch) : "memory");
}

// A hint for the L2: to give up first what nobody reads again soon (9.7.9.18, createpolicy).
__device__ __forceinline__ u64 passing() { u64 hint; asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(hint)); return hint; }

__device__ __forceinline__ void tma_load_as(u64 hint, u32 to, const TensorMap& map, u32 bar, int column, int row, int head, int batch) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7;"
    :: "r"(to), "l"(&map), "r"(bar), "r"(column), "r"(row), "r"(head), "r"(batch), "l"(hint) : "memory");
}

__device__ __forceinline__ void tma_store_as(u64 hint, const TensorMap& map, u32 from, int column, int row, int head, int batch) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group.L2::cache_hint [%0, {%2, %3, %4, %5}], [%1], %6;"
    :: "l"(&map), "r"(from), "r"(column), "r"(row), "r"(head), "r"(batch), "l"(hint) : "memory");
}

__device__ __forceinline__ void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

__device__ __forceinline__ void tma_store_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

__device__ __forceinline__ void tma_store_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

__device__ __forceinline__ void async_proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void bulk_load(u32 to, const void* from, int bytes, u32 bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
    :: "r"(to), "l"(from), "r"(bytes), "r"(bar) : "memory");
}

// Adds float32 numbers to those in memory; a store like tensor stores (9.7.9.25.4.2, cp.reduce.async.bulk).
__device__ __forceinline__ void add_bulk(float* to, u32 from, int bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" :: "l"(to), "r"(from), "r"(bytes) : "memory");
}
