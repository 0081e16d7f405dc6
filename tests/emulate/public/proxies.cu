// P12 Ordinary stores, then a TMA store, and no proxy fence.
extern "C" __global__ void __launch_bounds__(128) p12(const __grid_constant__ Params p) {
  fill<128>(tile(0), ONE);
  if (p.fault != 1) ptx::async_proxy_fence();
  __syncthreads();
  if (p.fault == 2) fill<128>(tile(0), ONE), __syncthreads();
  if (threadIdx.x == 0) store(p, tile(0), 0), ptx::tma_store_wait();
}

// P13 Ordinary stores, then wgmma reads them.
extern "C" __global__ void __launch_bounds__(128) p13(const __grid_constant__ Params p) {
  float d[32] = {};
  fill<128>(tile(0), ONE);
  if (p.fault != 1) ptx::async_proxy_fence();
  __syncthreads();
  ptx::wgmma_fence();
  multiply(d, tile(0), tile(0)), ptx::wgmma_commit(), ptx::wgmma_wait<0>();
  p.out[threadIdx.x] = d[0];
}

// P14 Ordinary reads, then a TMA load over the same bytes.
extern "C" __global__ void __launch_bounds__(32) p14(const __grid_constant__ Params p) {
  u32 sum = 0;
  begin<1, 1>();
  if (threadIdx.x == 0) fetch(p, 0, tile(0), 0), fetch(p, 1, tile(1), 1);
  for (int i = 0; i < 6; ++i) {
    wait(i % 2, i / 2);
    sum += word(tile(i % 2));
    if (p.fault != 1) ptx::async_proxy_fence();
    __syncwarp();
    if (threadIdx.x == 0 && i < 4) fetch(p, i % 2, tile(i % 2), i + 2);
  }
  p.out[threadIdx.x] = sum;
}
