// Global memory, several words at a time (PTX ISA 9.0, 9.7.9.8, 9.7.9.11).

__device__ __forceinline__ void load_global_x4(float* x, const float* from) {
  asm volatile("ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3]) : "l"(from));
}

__device__ __forceinline__ void store_global_x4(void* to, u32 x, u32 y, u32 z, u32 w) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" :: "l"(to), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}

// Four floats of an array that the kernel both writes and reads.
__device__ __forceinline__ void load_floats(float (&x)[4], const float* from) {
  asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3]) : "l"(from) : "memory");
}

__device__ __forceinline__ void store_floats(float* to, float x, float y, float z, float w) {
  asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" :: "l"(to), "f"(x), "f"(y), "f"(z), "f"(w) : "memory");
}

__device__ __forceinline__ void store_global_x2(float* to, float x, float y) {
  asm volatile("st.global.v2.f32 [%0], {%1, %2};" :: "l"(to), "f"(x), "f"(y) : "memory");
}

// A number by which blocks wait for each other: what was written before it is stored is there for who loads it so (9.7.9.8, 9.7.9.12).
__device__ __forceinline__ int load_acquire(const int* from) {
  int x;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
  return x;
}

__device__ __forceinline__ void store_release(int* to, int x) { asm volatile("st.release.gpu.global.s32 [%0], %1;" :: "l"(to), "r"(x) : "memory"); }

// Additions whose results nobody waits for (9.7.13.7, red).
__device__ __forceinline__ void add_global(float* to, float x) { asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" :: "l"(to), "f"(x) : "memory"); }

__device__ __forceinline__ void add_floats(float* to, float x, float y, float z, float w) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" :: "l"(to), "f"(x), "f"(y), "f"(z), "f"(w) : "memory");
}
