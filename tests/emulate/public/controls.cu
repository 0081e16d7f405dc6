__device__ __forceinline__ void bring(const Params& p, int s, int i) {   // a stage by a plain bulk copy, or by a box
  if (p.fault == -1) return fetch(p, s, tile(s), i);
  ptx::mbarrier_expect(bar(s), TILE);
  ptx::bulk_load(tile(s), p.in + 4096 * i, TILE, bar(s));
}
__device__ __forceinline__ u32 used(int s, int parity) {
  wait(s, parity);
  const u32 x = word(tile(s));
  __syncwarp();
  if (threadIdx.x == 32) arrive(2 + s);
  return x;
}

// N01 A ring of bulk copies between two warps: in a loop, as boxes, unrolled.
extern "C" __global__ void __launch_bounds__(64) n01(const __grid_constant__ Params p) {
  begin<1, 1, 1, 1>();
  u32 sum = 0;
  if (p.fault == -2) {
    if (threadIdx.x == 0) {
      wait(2, 1), bring(p, 0, 0), wait(3, 1), bring(p, 1, 1);
      wait(2, 0), bring(p, 0, 2), wait(3, 0), bring(p, 1, 3);
      wait(2, 1), bring(p, 0, 4), wait(3, 1), bring(p, 1, 5);
    } else if (threadIdx.x >= 32) {
      sum = used(0, 0) + used(1, 0) + used(0, 1) + used(1, 1) + used(0, 0) + used(1, 0);
    }
  } else if (threadIdx.x == 0) {
    for (int i = 0; i < 6; ++i) wait(2 + i % 2, i / 2 + 1), bring(p, i % 2, i);
  } else if (threadIdx.x >= 32) {
    for (int i = 0; i < 6; ++i) sum += used(i % 2, i / 2);
  }
  p.out[threadIdx.x] = sum;
}

// N02 128 arrive, 128 wait, count 256; the count of 128 is a fault.
extern "C" __global__ void __launch_bounds__(256) n02(const __grid_constant__ Params p) {
  if (threadIdx.x < 128) {
    ptx::store_shared(tile(0) + 4 * threadIdx.x, threadIdx.x);
    ptx::bar_arrive(3, p.fault == 1 ? 128 : 256);
  } else {
    ptx::bar_sync(3, 256);
    p.out[threadIdx.x] = word(tile(0), threadIdx.x - 128);
  }
}

// N03 Two loads, one barrier, one announcement of the sum: by one thread, by two, after the loads.
extern "C" __global__ void __launch_bounds__(64) n03(const __grid_constant__ Params p) {
  begin<1>();
  if (threadIdx.x == 0 && p.fault != -2) ptx::mbarrier_expect(bar(0), 2 * TILE);
  if (threadIdx.x == (p.fault == -1 ? 32 : 0)) load(p, 0, tile(0), 0), load(p, 0, tile(1), 1);
  if (threadIdx.x == 0 && p.fault == -2) ptx::mbarrier_expect(bar(0), 2 * TILE);
  wait(0, 0);
  p.out[threadIdx.x] = word(tile(0)) + word(tile(1));
}

// N04 Ordinary reads between two TMA stores of the same bytes.
extern "C" __global__ void __launch_bounds__(128) n04(const __grid_constant__ Params p) {
  fill<128>(tile(0), ONE);
  ptx::async_proxy_fence();
  __syncthreads();
  if (threadIdx.x == 0) store(p, tile(0), 0);
  p.out[4096 + threadIdx.x] = word(tile(0));
  if (threadIdx.x == 0) store(p, tile(0), 1), ptx::tma_store_wait();
}

// N06 Two threads wait for different phases of one barrier.
extern "C" __global__ void __launch_bounds__(64) n06(const __grid_constant__ Params p) {
  begin<1>();
  if (threadIdx.x == 0) arrive(0);
  __syncthreads();
  if (threadIdx.x == 0) wait(0, 0), arrive(0);
  if (threadIdx.x == 32) wait(0, 1);
}
