// P27 Output is staged in shared memory and copied out by all threads, with no barrier between.
extern "C" __global__ void __launch_bounds__(128) p27(const __grid_constant__ Params p) {
  ptx::store_shared(tile(0) + 4 * (threadIdx.x % 32 * 4 + threadIdx.x / 32), threadIdx.x);
  if (p.fault != 1) ptx::bar_sync(1, 128);
  p.out[threadIdx.x] = word(tile(0));
}

// P28 The output buffer is filled again while the last tile's store reads it.
extern "C" __global__ void __launch_bounds__(128) p28(const __grid_constant__ Params p) {
  for (int i = 0; i < 3; ++i) {
    fill<128>(tile(0), i);
    ptx::async_proxy_fence();
    ptx::bar_sync(1, 128);
    if (threadIdx.x == 0) store(p, tile(0), i), ptx::stores_read<0>();
    if (p.fault != 1) ptx::bar_sync(2, 128);
  }
  if (threadIdx.x == 0) ptx::tma_store_wait();
}

// P29 Output is laid over q, and q is released first: with one tile nobody notices.
extern "C" __global__ void __launch_bounds__(256) p29(const __grid_constant__ Params p) {
  begin<1, 1>();
  const int tiles = p.fault < 0 ? 1 : 2;
  if (threadIdx.x >= 128) {
    for (int i = 0; threadIdx.x == 128 && i < tiles; ++i) wait(1, i + 1), fetch(p, 0, tile(0), i);
    return;
  }
  for (int i = 0; i < tiles; ++i) {
    float d[32] = {};
    wait(0, i);
    ptx::wgmma_fence();
    multiply(d, tile(0), tile(0)), ptx::wgmma_commit(), ptx::wgmma_wait<0>();
    ptx::bar_sync(1, 128);
    if (threadIdx.x == 0 && p.fault) arrive(1);
    fill<128>(tile(0), __float_as_uint(d[0]));
    ptx::async_proxy_fence();
    ptx::bar_sync(1, 128);
    if (threadIdx.x == 0) store(p, tile(0), i), ptx::stores_read<0>();
    if (threadIdx.x == 0 && !p.fault) arrive(1);
  }
  if (threadIdx.x == 0) ptx::tma_store_wait();
}

// P30 stmatrix over an input of the epilogue that others still read.
extern "C" __global__ void __launch_bounds__(128) p30(const __grid_constant__ Params p) {
  begin<1>();
  if (threadIdx.x == 0) fetch(p, 0, tile(0), 0);
  wait(0, 0);
  const u32 r = word(tile(0), threadIdx.x % 4 * 32 + threadIdx.x / 4);
  if (p.fault != 1) ptx::bar_sync(1, 128);
  ptx::stmatrix_x4(tile(0) + 16 * threadIdx.x, r, r, r, r);
  ptx::async_proxy_fence();
  ptx::bar_sync(1, 128);
  if (threadIdx.x == 0) store(p, tile(0), 0), ptx::tma_store_wait();
}
