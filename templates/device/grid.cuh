// Kernels of a stream that overlap: programmatic dependent launch (PTX ISA 9.0, 9.7.13.13, griddepcontrol).

__device__ __forceinline__ void previous_kernel_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

__device__ __forceinline__ void next_kernel_start() { asm volatile("griddepcontrol.launch_dependents;"); }

// The number of this multiprocessor (PTX ISA 9.0, 10, %smid).
__device__ __forceinline__ u32 multiprocessor() { u32 x; asm("mov.u32 %0, %%smid;" : "=r"(x)); return x; }
