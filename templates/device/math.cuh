// Approximations of the special function unit (PTX ISA 9.0, 9.7.3) and conversions (9.7.9.21). Subnormal results of exp2 and inverse become zero.

__device__ __forceinline__ float exp2(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }

__device__ __forceinline__ float log2(float x) { float y; asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }

__device__ __forceinline__ float tanh(float x) { float y; asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }

__device__ __forceinline__ float reciprocal(float x) { float y; asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }

__device__ __forceinline__ float inverse(float x) { float y; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }

__device__ __forceinline__ float sqrt(float x) { float y; asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }

// NaN if an argument is, as in the formula; fminf and fmaxf would hide it.
__device__ __forceinline__ float minimum(float x, float y) { float z; asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y)); return z; }

__device__ __forceinline__ float maximum(float x, float y) { float z; asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y)); return z; }

// So many bits from one on, none beyond the last (9.7.1.23, bmsk).
__device__ __forceinline__ u32 ones(u32 from, u32 count) { u32 x; asm("bmsk.clamp.b32 %0, %1, %2;" : "=r"(x) : "r"(from), "r"(count)); return x; }

__device__ __forceinline__ u32 bf16x2(float low, float high) { u32 x; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low)); return x; }

__device__ __forceinline__ u32 f16x2(float low, float high) { u32 x; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(high), "f"(low)); return x; }

// Either of two numbers of 16 bits in one word.
__device__ __forceinline__ float low_bf16(u32 x) { return __uint_as_float(x << 16); }

__device__ __forceinline__ float high_bf16(u32 x) { return __uint_as_float(x & 0xFFFF0000u); }

__device__ __forceinline__ float low_f16(u32 x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(u16(x))); return y; }

__device__ __forceinline__ float high_f16(u32 x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(u16(x >> 16))); return y; }
