// P36 The last rows of a tile hold what was there before, and zero times NaN is NaN.
extern "C" __global__ void __launch_bounds__(128) p36(const __grid_constant__ Params p) {
  const u32 rows = 50;
  float d[32] = {};
  fill<128>(tile(1), 0);
  for (u32 i = threadIdx.x; i < TILE / 16; i += 128)
    if (i / 8 < rows) ptx::copy_async_16(tile(0) + 16 * i, p.in + 8 * i, true);
    else if (p.fault != 1) ptx::store_shared_x4(tile(0) + 16 * i, 0, 0, 0, 0);
  ptx::copy_commit(), ptx::copy_wait<0>();
  ptx::async_proxy_fence();
  __syncthreads();
  ptx::wgmma_fence();
  multiply(d, tile(1), tile(0)), ptx::wgmma_commit(), ptx::wgmma_wait<0>();
  p.out[threadIdx.x] = d[0];
}

// P37 Shared memory is counted without the padding before an aligned part: here of barriers, of a tile.
extern "C" __global__ void __launch_bounds__(32) p37(const __grid_constant__ Params p) {
  const u32 end = base() + p.bytes, at = (p.fault == 1 ? end - 8 + 1023 : end - 1024) / 1024 * 1024;
  begin<1>();
  if (threadIdx.x == 0 && p.fault != 2) ptx::mbarrier_init(at, 1);
  if (threadIdx.x == 0) fetch(p, 0, p.fault == 2 ? end - TILE + 1024 : end - TILE - 1024, 0);
  wait(0, 0);
}

// P49 32 lanes store into an array of 16.
extern "C" __global__ void __launch_bounds__(32) p49(const __grid_constant__ Params p) {
  const u32 lane = threadIdx.x, q = tile(0), scale = q + 4 * 16;
  if (p.fault == 1 || lane < 16) ptx::store_shared(q + 4 * lane, lane < 16 ? lane : 0);
  if (lane % 8 == 0 && lane < 16) ptx::store_shared(scale + lane / 2, ONE);
  __syncwarp();
  p.out[lane] = word(tile(0), lane % 18);
}
