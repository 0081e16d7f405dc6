// The kernel ahead, with and without an early trigger.
extern "C" __global__ void __launch_bounds__(64) ahead(const __grid_constant__ Params p) {
  if (p.fault != 2) ptx::next_kernel_start();
  p.work[threadIdx.x] = threadIdx.x;
}

// P38 The second kernel does not wait before it reads: the second time with no trigger in the first one.
extern "C" __global__ void __launch_bounds__(64) p38(const __grid_constant__ Params p) {
  if (p.fault <= 0) ptx::previous_kernel_wait();
  p.out[threadIdx.x] = p.work[63 - threadIdx.x];
}

// P39 The wait stands after the first read.
extern "C" __global__ void __launch_bounds__(64) p39(const __grid_constant__ Params p) {
  float first = 0;
  if (p.fault == 1) first = p.work[threadIdx.x];
  ptx::previous_kernel_wait();
  if (p.fault != 1) first = p.work[threadIdx.x];
  p.out[threadIdx.x] = first + p.work[63 - threadIdx.x];
}
