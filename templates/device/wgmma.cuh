// Warpgroup products (PTX ISA 9.0, 9.7.15). The products themselves, one a shape, come from wgmma_product.j2.

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// x, computed here: the compiler moves what goes into a product to just before it, beyond the barriers, or keeps it over a loop in registers.
__device__ __forceinline__ float here(float x) { asm volatile("" : "+f"(x)); return x; }

// x, known from here on: the compiler computes with what is known before while products are in flight, and ptxas gives up on those.
__device__ __forceinline__ int held(int x) { asm volatile("" : "+r"(x)); return x; }

// Registers that products in flight read, in use up to here: the compiler gives those of what nobody reads afterwards to others.
template <int N> __device__ __forceinline__ void read_until_here(u32 (&x)[N]) {
  #pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+r"(x[i]));
}

template <int PENDING> __device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(PENDING) : "memory"); }

template <int REGISTERS> __device__ __forceinline__ void fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(REGISTERS)); }

template <int REGISTERS> __device__ __forceinline__ void more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(REGISTERS)); }
