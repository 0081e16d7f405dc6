__device__ __forceinline__ void meet() { ptx::cluster_arrive(), ptx::cluster_wait(); }
__device__ __forceinline__ u32 peer(u32 at) { return ptx::mapa(at, ptx::rank() ^ 1); }
__device__ __forceinline__ u32 first(u32 at) { return ptx::mapa(at, 0); }

// P40 A remote arrival before the peer's initialisation is known.
extern "C" __global__ void __launch_bounds__(32) p40(const __grid_constant__ Params p) {
  begin<1>();
  if (p.fault != 1) meet();
  if (threadIdx.x == 0) ptx::cluster_mbarrier_arrive(peer(bar(0)));
  wait(0, 0);
}

// P41 A block leaves while its peer still reads its shared memory; or still arrives at its barrier.
extern "C" __global__ void __launch_bounds__(32) p41(const __grid_constant__ Params p) {
  begin<1>();
  ptx::store_shared(tile(0) + 4 * threadIdx.x, threadIdx.x);
  meet();
  if (ptx::rank() == 1 && p.fault != 2) p.out[threadIdx.x] = ptx::cluster_load(first(tile(0) + 4 * threadIdx.x));
  if (ptx::rank() == 1 && p.fault == 2 && threadIdx.x == 0) ptx::cluster_mbarrier_arrive(first(bar(0)));
  if (p.fault <= 0) meet();
}

// P42 Multicast: every receiver announces the bytes on its own barrier, before or after they arrive.
extern "C" __global__ void __launch_bounds__(32) p42(const __grid_constant__ Params p) {
  begin<1>();
  meet();
  const bool announces = threadIdx.x == 0 && (ptx::rank() == 0 || p.fault != 1);
  if (announces && p.fault != -1) ptx::mbarrier_expect(bar(0), TILE);
  if (threadIdx.x == 0 && ptx::rank() == 0) ptx::tma_load_both(tile(0), p.map, bar(0), 0);
  if (announces && p.fault == -1) ptx::mbarrier_expect(bar(0), TILE);
  wait(0, 0);
  p.out[32 * ptx::rank() + threadIdx.x] = word(tile(0));
  meet();
}

// P43 Multicast: the stage is free only when both blocks are done with it.
extern "C" __global__ void __launch_bounds__(64) p43(const __grid_constant__ Params p) {
  if (p.fault == 1) begin<1, 1>();
  else begin<1, 2>();
  meet();
  u32 sum = 0;
  for (int i = 0; i < 4; ++i) {
    if (threadIdx.x == 0) {
      wait(1, i + 1);
      ptx::mbarrier_expect(bar(0), TILE);
      if (ptx::rank() == 0) ptx::tma_load_both(tile(0), p.map, bar(0), i);
    } else if (threadIdx.x >= 32) {
      wait(0, i);
      sum += word(tile(0));
      __syncwarp();
      if (threadIdx.x == 32) arrive(1);
      if (threadIdx.x == 32 && p.fault != 1) ptx::cluster_mbarrier_arrive(peer(bar(1)));
    }
  }
  p.out[64 * blockIdx.x + threadIdx.x] = sum;
  meet();
}

// P44 Two blocks with loops of different length; or a cluster barrier that only one role's threads reach.
extern "C" __global__ void __launch_bounds__(64) p44(const __grid_constant__ Params p) {
  begin<1, 2, 1>();
  meet();
  const int steps = p.fault == 1 && ptx::rank() == 1 ? 3 : 5;
  u32 sum = 0;
  for (int i = 0; i < steps; ++i) {
    if (threadIdx.x == 0) {
      wait(1, i + 1);
      ptx::mbarrier_expect(bar(0), TILE);
      if (ptx::rank() == 0) ptx::tma_load_both(tile(0), p.map, bar(0), i);
    } else if (threadIdx.x >= 32) {
      wait(0, i);
      sum += word(tile(0));
      __syncwarp();
      if (threadIdx.x == 32) arrive(1), ptx::cluster_mbarrier_arrive(peer(bar(1)));
    }
  }
  if (p.fault != 2 || threadIdx.x >= 32) meet();
  else wait(2, 0);
}

// Q1 st.async: the bytes are read before the wait for their barrier; or announced too few.
extern "C" __global__ void __launch_bounds__(32) q1(const __grid_constant__ Params p) {
  begin<1>();
  if (threadIdx.x == 0) ptx::mbarrier_expect(bar(0), p.fault == 2 ? 124 : 128);
  meet();
  ptx::store_async(peer(tile(0) + 4 * threadIdx.x), threadIdx.x, peer(bar(0)));
  if (p.fault != 1) wait(0, 0);
  p.out[32 * ptx::rank() + threadIdx.x] = word(tile(0));
  wait(0, 0);
  meet();
}

// Q2 A bulk copy between blocks: its source is overwritten before it is known to be read; or was stored with no proxy fence.
extern "C" __global__ void __launch_bounds__(128) q2(const __grid_constant__ Params p) {
  begin<1>();
  if (threadIdx.x == 0) ptx::mbarrier_expect(bar(0), TILE);
  fill<128>(tile(0), ONE);
  if (p.fault != 2) ptx::async_proxy_fence();
  meet();
  if (threadIdx.x == 0) ptx::cluster_copy(peer(tile(1)), tile(0), TILE, peer(bar(0)));
  wait(0, 0);
  p.out[128 * ptx::rank() + threadIdx.x] = word(tile(1));
  if (p.fault != 1) meet();
  fill<128>(tile(0), 0);
  meet();
}

// Q3 Ordinary stores into the peer's memory, read with nothing in between.
extern "C" __global__ void __launch_bounds__(32) q3(const __grid_constant__ Params p) {
  meet();
  ptx::cluster_store(peer(tile(0) + 4 * threadIdx.x), threadIdx.x);
  if (p.fault != 1) meet();
  p.out[32 * ptx::rank() + threadIdx.x] = word(tile(0));
  meet();
}
