// P23 __syncthreads in the branch of one role.
extern "C" __global__ void __launch_bounds__(256) p23(const __grid_constant__ Params p) {
  begin<1>();
  if (threadIdx.x < 128) {
    ptx::store_shared(tile(1) + 4 * threadIdx.x, threadIdx.x);
    if (p.fault == 1) __syncthreads();
    else ptx::bar_sync(1, 128);
    p.out[threadIdx.x] = word(tile(1), 127 - threadIdx.x);
  } else {
    if (threadIdx.x == 128) fetch(p, 0, tile(0), 0);
    wait(0, 0);
  }
}

// P24 Two groups on one barrier number.
extern "C" __global__ void __launch_bounds__(256) p24(const __grid_constant__ Params p) {
  const int group = threadIdx.x / 128;
  ptx::store_shared(tile(0) + 4 * threadIdx.x, threadIdx.x);
  ptx::bar_sync(p.fault == 1 ? 1 : 1 + group, 128);
  p.out[threadIdx.x] = word(tile(0), threadIdx.x ^ 127);
}

// P25 One lane releases for 32 that were not gathered; the second time it is the last one.
extern "C" __global__ void __launch_bounds__(64) p25(const __grid_constant__ Params p) {
  begin<1>();
  if (threadIdx.x < 32) {
    ptx::store_shared(tile(0) + 4 * threadIdx.x, threadIdx.x);
    ptx::async_proxy_fence();
    if (p.fault <= 0) __syncwarp();
    if (threadIdx.x == (p.fault == 2 ? 31 : 0)) arrive(0);
  } else {
    wait(0, 0);
    p.out[threadIdx.x] = word(tile(0), threadIdx.x % 32);
  }
}

// P26 A mailbox is overwritten before all have read it.
extern "C" __global__ void __launch_bounds__(192) p26(const __grid_constant__ Params p) {
  begin<1, 5>();
  if (threadIdx.x % 32) return;
  u32 sum = 0;
  for (int i = 0; i < 6; ++i)
    if (threadIdx.x == 0) {
      if (p.fault != 1) wait(1, i + 1);
      ptx::store_shared(tile(0), i);
      arrive(0);
    } else {
      wait(0, i);
      sum += word(tile(0), 0);
      arrive(1);
    }
  p.out[threadIdx.x] = sum;
}

// P50 A barrier of a warp is reached in two halves.
extern "C" __global__ void __launch_bounds__(32) p50(const __grid_constant__ Params p) {
  u32 x = 0;
  if (threadIdx.x < 16) {
    ptx::store_shared(tile(0) + 4 * threadIdx.x, 1);
    if (p.fault == 1) ptx::bar_sync(14, 32);
    if (p.fault == 1) x = word(tile(0), 31 - threadIdx.x);
  } else {
    ptx::store_shared(tile(0) + 4 * threadIdx.x, 2);
    if (p.fault == 1) ptx::bar_sync(14, 32);
    if (p.fault == 1) x = 2 * word(tile(0), 31 - threadIdx.x);
  }
  if (p.fault != 1) ptx::bar_sync(14, 32), x = word(tile(0), 31 - threadIdx.x);
  p.out[threadIdx.x] = x;
}
