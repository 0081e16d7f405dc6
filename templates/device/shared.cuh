// Shared memory by 32-bit address (PTX ISA 9.0, 9.7.9); matrices of 8 x 8 elements of 16 bits (9.7.14.5).

__device__ __forceinline__ u32 load_shared(u32 at) { u32 x; asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(at) : "memory"); return x; }

__device__ __forceinline__ void store_shared(u32 at, u32 x) { asm volatile("st.shared.u32 [%0], %1;" :: "r"(at), "r"(x) : "memory"); }

__device__ __forceinline__ void stmatrix_x4(u32 row, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" :: "r"(row), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

__device__ __forceinline__ void stmatrix_x4_trans(u32 row, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" :: "r"(row), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

__device__ __forceinline__ void load_shared_floats(float (&x)[4], u32 at) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3]) : "r"(at) : "memory");
}

__device__ __forceinline__ void load_shared_x2(float& x, float& y, u32 at) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x), "=f"(y) : "r"(at) : "memory");
}

__device__ __forceinline__ void load_shared_x4(u32 (&r)[4], u32 at) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}

__device__ __forceinline__ void store_shared_x4(u32 at, u32 x, u32 y, u32 z, u32 w) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" :: "r"(at), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}

__device__ __forceinline__ void store_shared_x2(u32 at, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" :: "r"(at), "f"(x), "f"(y) : "memory");
}

__device__ __forceinline__ void store_shared_floats(u32 at, float x, float y, float z, float w) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" :: "r"(at), "f"(x), "f"(y), "f"(z), "f"(w) : "memory");
}
