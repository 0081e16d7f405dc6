// P31 A swizzled tile at a base that is not a multiple of the swizzle's pattern.
extern "C" __global__ void __launch_bounds__(128) p31(const __grid_constant__ Params p) {
  begin<1>();
  const u32 at = tile(0) + (p.fault == 1 ? 128 : 0);
  float d[32] = {};
  if (threadIdx.x == 0) fetch(p, 0, at, 0);
  wait(0, 0);
  ptx::wgmma_fence();
  multiply(d, at, at), ptx::wgmma_commit(), ptx::wgmma_wait<0>();
  p.out[threadIdx.x] = d[0];
}

// P32 Offsets of a descriptor in bytes.
extern "C" __global__ void __launch_bounds__(128) p32(const __grid_constant__ Params p) {
  begin<1>();
  float d[32] = {};
  if (threadIdx.x == 0) fetch(p, 0, tile(0), 0);
  wait(0, 0);
  const u64 in_bytes = u64(tile(0) >> 4) | 16ull << 16 | 1024ull << 32 | 1ull << 62;
  ptx::wgmma_fence();
  ptx::product_qk(d, p.fault == 1 ? in_bytes : operand(tile(0)), operand(tile(0)), 1);
  ptx::wgmma_commit(), ptx::wgmma_wait<0>();
  p.out[threadIdx.x] = d[0];
}

// P33 Stages of 64 bytes, one after another.
extern "C" __global__ void __launch_bounds__(32) p33(const __grid_constant__ Params p) {
  begin<1, 1>();
  const u32 stage = p.fault == 1 ? 64 : 128;
  for (int s = 0; s < 2; ++s) {
    if (threadIdx.x == 0) ptx::mbarrier_expect(bar(s), 64), ptx::tma_load(tile(0) + s * stage, p.line, bar(s), 0, s, 0, 0);
    wait(s, 0);
    p.out[threadIdx.x] = word(tile(0) + s * stage, threadIdx.x % 16);
  }
}

// P34 The global side of a copy: start, size, inner coordinate.
extern "C" __global__ void __launch_bounds__(128) p34(const __grid_constant__ Params p) {
  fill<128>(tile(0), ONE);
  ptx::async_proxy_fence();
  __syncthreads();
  if (threadIdx.x != 0) return;
  ptx::bulk_store(p.out + (p.fault == 1), tile(0), p.fault == 2 ? 252 : 256);
  ptx::tma_store_commit();
  ptx::tma_store_as(ptx::passing(), p.floats, tile(0), p.fault == 3 ? 1 : 4, 8, 0, 0);
  ptx::tma_store_commit(), ptx::tma_store_wait();
}
