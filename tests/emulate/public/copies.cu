// P01 The consumer reads a TMA tile before it waits.
extern "C" __global__ void __launch_bounds__(128) p01(const __grid_constant__ Params p) {
  begin<1>();
  if (threadIdx.x == 0) fetch(p, 0, tile(0), 0);
  __syncthreads();
  if (p.fault != 1) wait(0, 0);
  p.out[threadIdx.x] = word(tile(0));
  wait(0, 0);
}

// P02 It waits on the barrier of another tile.
extern "C" __global__ void __launch_bounds__(128) p02(const __grid_constant__ Params p) {
  begin<1, 1>();
  if (threadIdx.x == 0) fetch(p, 0, tile(0), 0), fetch(p, 1, tile(1), 1);
  wait(p.fault == 1, 0);
  p.out[threadIdx.x] = word(tile(0));
  wait(p.fault != 1, 0);
}

// P03 The wait for TMA stores allows one too many.
extern "C" __global__ void __launch_bounds__(128) p03(const __grid_constant__ Params p) {
  fill<128>(tile(0), ONE), fill<128>(tile(1), ONE);
  ptx::async_proxy_fence();
  __syncthreads();
  if (threadIdx.x == 0) store(p, tile(0), 0), store(p, tile(1), 1), p.fault == 1 ? ptx::stores_read<1>() : ptx::stores_read<0>();
  __syncthreads();
  fill<128>(tile(0), 0), fill<128>(tile(1), 0);
  if (threadIdx.x == 0) ptx::tma_store_wait();
}

// P04 A stage is loaded anew while its own store is the one that may be pending.
extern "C" __global__ void __launch_bounds__(32) p04(const __grid_constant__ Params p) {
  begin<1, 1>();
  if (threadIdx.x != 0) return;
  fetch(p, 0, tile(0), 0), fetch(p, 1, tile(1), 1);
  for (int i = 0; i < 4; ++i) {
    wait(i % 2, i / 2);
    store(p, tile(i % 2), i);
    if (p.fault == 1) ptx::stores_read<1>();
    else ptx::stores_read<0>();
    if (i < 2) fetch(p, i % 2, tile(i % 2), i + 2);
  }
  ptx::tma_store_wait();
}

__device__ __forceinline__ void copy(const Params& p, u32 to) {   // two KiB by 128 threads
  ptx::copy_async_16(to + 16 * threadIdx.x, p.in + 8 * threadIdx.x, true);
  ptx::copy_commit();
}

// P05 The wait for cp.async allows one group too many; the second time two groups are one tile.
extern "C" __global__ void __launch_bounds__(128) p05(const __grid_constant__ Params p) {
  copy(p, tile(0)), copy(p, tile(1));
  if (p.fault == 1) ptx::copy_wait<2>();
  else if (p.fault == 2) ptx::copy_wait<1>();
  else ptx::copy_wait<0>();
  __syncthreads();
  p.out[threadIdx.x] = word(tile(0)) + (p.fault == 1 ? 0 : word(tile(1)));
  ptx::copy_wait<0>();
}

// P06 The reader uses the newer group of another warp; or what another warp copied, after a wait of its own alone.
extern "C" __global__ void __launch_bounds__(64) p06(const __grid_constant__ Params p) {
  begin<32>();
  if (threadIdx.x < 32) {
    copy(p, tile(0)), copy(p, tile(1));
    ptx::copy_wait<1>();
    if (p.fault != 2) arrive(0);
    ptx::copy_wait<0>();
  } else {
    ptx::copy_wait<0>();
    if (p.fault != 2) wait(0, 0);
    p.out[threadIdx.x] = word(tile(p.fault == 1), threadIdx.x % 32);
  }
}
