// P46 The turn is passed on without the other threads' writes. Right: a fence by all; or a store that releases, by one.
extern "C" __global__ void __launch_bounds__(64) p46(const __grid_constant__ Params p) {
  if (blockIdx.x == 0) {
    p.work[threadIdx.x] = threadIdx.x;
    if (p.fault == 0) __threadfence();
    __syncthreads();
    if (threadIdx.x == 0 && p.fault == -1) ptx::store_release(p.flag, 1);
    if (threadIdx.x == 0 && p.fault != -1) ptx::store_relaxed(p.flag, 1);
  } else {
    if (threadIdx.x == 0)
      while (ptx::load_acquire(p.flag) != 1) {}
    __syncthreads();
    p.out[threadIdx.x] = p.work[63 - threadIdx.x];
  }
}

// P47 The last block reads without acquire.
extern "C" __global__ void __launch_bounds__(64) p47(const __grid_constant__ Params p) {
  p.work[64 * blockIdx.x + threadIdx.x] = threadIdx.x;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    ptx::store_shared(tile(0), atomicAdd(p.flag, 1));
    if (p.fault != 1) __threadfence();
  }
  __syncthreads();
  if (word(tile(0), 0) != gridDim.x - 1) return;
  for (u32 i = 0; i < gridDim.x; ++i) p.out[64 * i + threadIdx.x] = p.work[64 * i + 63 - threadIdx.x];
}

// P48 A flag that is only volatile; or of the scope of a block.
extern "C" __global__ void __launch_bounds__(64) p48(const __grid_constant__ Params p) {
  if (blockIdx.x == 0) {
    p.work[threadIdx.x] = threadIdx.x;
    __syncthreads();
    if (threadIdx.x != 0) return;
    if (p.fault == 1) ptx::store_volatile(p.flag, 1);
    else if (p.fault == 2) ptx::store_release_cta(p.flag, 1);
    else ptx::store_release(p.flag, 1);
  } else {
    if (threadIdx.x == 0)
      while ((p.fault == 1 ? ptx::load_volatile(p.flag) : p.fault == 2 ? ptx::load_acquire_cta(p.flag) : ptx::load_acquire(p.flag)) != 1) {}
    __syncthreads();
    p.out[threadIdx.x] = p.work[63 - threadIdx.x];
  }
}

// Q5 A turn that nobody passes on, or to somebody else; a lock that is taken twice. Right: it comes; or who waits gives up.
extern "C" __global__ void __launch_bounds__(64) q5(const __grid_constant__ Params p) {
  if (threadIdx.x != 0) return;
  if (blockIdx.x == 0) {
    if (p.fault == 3) while (atomicCAS(p.flag, 0, 1) != 0 || p.fault == 3) {}
    if (p.fault == 0 || p.fault == 2) ptx::store_release(p.flag, 1 + p.fault);
  } else if (p.fault == -1) {
    for (int tries = 0; tries < 200 && ptx::load_acquire(p.flag) != 1; ++tries) {}
  } else if (p.fault != 3) {
    while (ptx::load_acquire(p.flag) != 1) {}
  }
}
