// P07 An operand in shared memory is overwritten while the product runs.
extern "C" __global__ void __launch_bounds__(128) p07(const __grid_constant__ Params p) {
  float d[32] = {}, e[32] = {};
  fill<128>(tile(0), ONE), fill<128>(tile(1), ONE);
  ptx::async_proxy_fence();
  __syncthreads();
  ptx::wgmma_fence();
  multiply(d, tile(1), tile(0)), ptx::wgmma_commit();
  multiply(e, tile(0), tile(1)), ptx::wgmma_commit();
  if (p.fault == 1) ptx::wgmma_wait<1>();
  else ptx::wgmma_wait<0>();
  __syncthreads();
  fill<128>(tile(0), 0);
  ptx::wgmma_wait<0>();
  p.out[threadIdx.x] = d[0] + e[0];
}

// P08 The ring is one buffer too short for the product that is left pending.
extern "C" __global__ void __launch_bounds__(128) p08(const __grid_constant__ Params p) {
  const int stages = p.fault == 1 ? 2 : 3;
  float d[32] = {};
  fill<128>(tile(3), ONE);
  ptx::async_proxy_fence();
  begin<1, 1, 1>();
  if (threadIdx.x == 0) fetch(p, 0, tile(0), 0);
  for (int i = 0; i < 6; ++i) {
    if (threadIdx.x == 0 && i < 5) fetch(p, (i + 1) % stages, tile((i + 1) % stages), i + 1);
    wait(i % stages, i / stages);
    ptx::bar_sync(1, 128);
    ptx::wgmma_fence();
    multiply(d, tile(i % stages), tile(3)), ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
  }
  ptx::wgmma_wait<0>();
  p.out[threadIdx.x] = d[0];
}

// P09 Operand a in registers is loaded anew while the product still reads it.
extern "C" __global__ void __launch_bounds__(128) p09(const __grid_constant__ Params p) {
  float d[32] = {};
  u32 a[4];
  fill<128>(tile(0), ONE), fill<128>(tile(1), 2 * ONE);
  ptx::async_proxy_fence();
  __syncthreads();
  for (int i = 0; i < 2; ++i) {
    ptx::ldmatrix_x4(a, tile(i) + threadIdx.x * 64);
    ptx::wgmma_fence();
    ptx::product_pv(d, a, operand(tile(1)), 1), ptx::wgmma_commit();
    if (p.fault != 1) ptx::wgmma_wait<0>();
  }
  ptx::wgmma_wait<0>();
  p.out[threadIdx.x] = d[0];
}

// P10 wgmma.fence is left out; between products of one shape on the same accumulator none is needed.
extern "C" __global__ void __launch_bounds__(128) p10(const __grid_constant__ Params p) {
  float d[32] = {};
  fill<128>(tile(0), ONE);
  ptx::async_proxy_fence();
  __syncthreads();
  if (p.fault != 1) ptx::wgmma_fence();
  for (int i = 0; i < 3; ++i) multiply(d, tile(0), tile(0));
  ptx::wgmma_commit(), ptx::wgmma_wait<0>();
  for (int i = 0; i < 32; ++i) d[i] *= 0.5f;
  if (p.fault != 2) ptx::wgmma_fence();
  multiply(d, tile(0), tile(0)), ptx::wgmma_commit(), ptx::wgmma_wait<0>();
  p.out[threadIdx.x] = d[0];
}

// P11 One warpgroup's wait does not speak for the other.
extern "C" __global__ void __launch_bounds__(256) p11(const __grid_constant__ Params p) {
  float d[32] = {};
  for (int i = 0; i < 3; ++i) {
    fill<256>(tile(0), ONE);
    ptx::async_proxy_fence();
    __syncthreads();
    ptx::wgmma_fence();
    multiply(d, tile(0), tile(0)), ptx::wgmma_commit(), ptx::wgmma_wait<0>();
    if (p.fault != 1) __syncthreads();
  }
  p.out[threadIdx.x] = d[0];
}
