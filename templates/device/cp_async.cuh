// Asynchronous copies from global to shared memory (PTX ISA 9.0, 9.7.9.25.3): what does not exist is not read, zeros come instead.

__device__ __forceinline__ void copy_async_16(u32 to, const void* from, bool exists) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" :: "r"(to), "l"(from), "r"(exists ? 16 : 0) : "memory");
}

// With a hint for the L2.
__device__ __forceinline__ void copy_async_16_as(u64 hint, u32 to, const void* from, bool exists) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;"
    :: "r"(to), "l"(from), "r"(exists ? 16 : 0), "l"(hint) : "memory");
}

__device__ __forceinline__ void copy_async_8(u32 to, const void* from, bool exists) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" :: "r"(to), "l"(from), "r"(exists ? 8 : 0) : "memory");
}

__device__ __forceinline__ void copy_async_4(u32 to, const void* from, bool exists) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" :: "r"(to), "l"(from), "r"(exists ? 4 : 0) : "memory");
}

__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int PENDING> __device__ __forceinline__ void copy_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory"); }
