// Kernels of a stream that overlap: programmatic dependent launch (PTX ISA 9.0, 9.7.13.13, griddepcontrol).

__device__ __forceinline__ void previous_kernel_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

__device__ __forceinline__ void next_kernel_start() { asm volatile("griddepcontrol.launch_dependents;"); }
