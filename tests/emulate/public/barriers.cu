// P15 A barrier is used before other threads may see its initialisation; or was never initialised.
extern "C" __global__ void __launch_bounds__(128) p15(const __grid_constant__ Params p) {
  if (threadIdx.x == 0 && p.fault != 2) ptx::mbarrier_init(bar(0), 128);
  if (p.fault != 1) __syncthreads();
  arrive(0);
  wait(0, 0);
}

// P16 Bytes announced and bytes copied differ. A box that sticks out of the array counts as a whole.
extern "C" __global__ void __launch_bounds__(128) p16(const __grid_constant__ Params p) {
  begin<1>();
  if (threadIdx.x == 0) ptx::mbarrier_expect(bar(0), TILE + (p.fault == 1 ? 16 : p.fault == 2 ? -16 : 0)), load(p, 0, tile(0), 7);
  wait(0, 0);
  p.out[threadIdx.x] = word(tile(0));
}

// P17 Every lane arrives instead of one; or one of two parties.
extern "C" __global__ void __launch_bounds__(64) p17(const __grid_constant__ Params p) {
  if (p.fault == 2) begin<1, 2>();
  else begin<1, 1>();
  u32 sum = 0;
  for (int i = 0; i < 6; ++i) {
    if (threadIdx.x == 0) {
      wait(1, i + 1);
      fetch(p, 0, tile(0), i);
    } else if (threadIdx.x >= 32) {
      wait(0, i);
      sum += word(tile(0));
      __syncwarp();
      if (threadIdx.x == 32 || p.fault == 1) arrive(1);
    }
  }
  p.out[threadIdx.x] = sum;
}

// P18 The consumer polls the barrier of the first stage for ever.
extern "C" __global__ void __launch_bounds__(64) p18(const __grid_constant__ Params p) {
  begin<1, 1, 1, 1, 1, 1, 1, 1>();
  u32 sum = 0;
  for (int i = 0; i < 8; ++i) {
    const int s = i % 4;
    if (threadIdx.x == 0) {
      wait(4 + s, i / 4 + 1);
      fetch(p, s, tile(s), i % 7);
    } else if (threadIdx.x >= 32) {
      if (p.fault == 1) wait(0, 0);
      else wait(s, i / 4);
      sum += word(tile(s));
      __syncwarp();
      if (threadIdx.x == 32) arrive(4 + s);
    }
  }
  p.out[threadIdx.x] = sum;
}

// P19 The parity is toggled one time too few per tile: with one tile nobody notices.
extern "C" __global__ void __launch_bounds__(64) p19(const __grid_constant__ Params p) {
  begin<1, 1>();
  u32 sum = 0, parity = 0;
  for (int t = 0; t < (p.fault < 0 ? 1 : 2); ++t)
    for (int i = 0; i < 3; ++i) {
      if (threadIdx.x == 0) {
        wait(1, 3 * t + i + 1);
        fetch(p, 0, tile(0), i);
      } else if (threadIdx.x >= 32) {
        wait(0, parity);
        sum += word(tile(0));
        __syncwarp();
        if (threadIdx.x == 32) arrive(1);
        if (p.fault == 0 || i < 2) parity ^= 1;
      }
    }
  p.out[threadIdx.x] = sum;
}

// P20 A single slot is armed again before all have looked at its barrier.
extern "C" __global__ void __launch_bounds__(128) p20(const __grid_constant__ Params p) {
  begin<1>();
  u32 sum = 0;
  if (threadIdx.x == 0) fetch(p, 0, tile(0), 0);
  for (int i = 0; i < 5; ++i) {
    wait(0, i);
    if (p.fault != 1) ptx::bar_sync(1, 128);
    if (threadIdx.x == 0 && i < 4) fetch(p, 0, tile((i + 1) % 2), i + 1);
    sum += word(tile(i % 2));
    ptx::bar_sync(1, 128);
  }
  p.out[threadIdx.x] = sum;
}

// P21 Memory of a live barrier is used for data; or the barrier is initialised twice.
extern "C" __global__ void __launch_bounds__(128) p21(const __grid_constant__ Params p) {
  begin<1, 1>();
  if (threadIdx.x == 0) arrive(0);
  wait(0, 0);
  __syncthreads();
  if (threadIdx.x == 0 && p.fault <= 0) ptx::mbarrier_inval(bar(0));
  __syncthreads();
  if (threadIdx.x == 0 && p.fault != 1 && p.fault != -1) ptx::mbarrier_init(bar(0), 1);
  if (threadIdx.x == 0 && p.fault == 1) ptx::mbarrier_expect(bar(1), 16), ptx::bulk_load(bar(0), p.in, 16, bar(1));
  if (threadIdx.x == 0 && p.fault == -1) ptx::store_shared(bar(0), 1);
}

// P22 Two roles wait for each other; or one has returned.
extern "C" __global__ void __launch_bounds__(64) p22(const __grid_constant__ Params p) {
  begin<1, 1>();
  if (threadIdx.x == 0) wait(0, 0), arrive(1);
  if (threadIdx.x != 32 || p.fault == 2) return;
  if (p.fault != 1) arrive(0);
  wait(1, 0);
  if (p.fault == 1) arrive(0);
}

// Q4 A stage is released before it is read, which barrier 2 delays until the next load is on its way.
extern "C" __global__ void __launch_bounds__(64) q4(const __grid_constant__ Params p) {
  begin<1, 1, 1>();
  u32 sum = 0;
  for (int i = 0; i < 6; ++i) {
    if (threadIdx.x == 0) {
      wait(1, i + 1);
      fetch(p, 0, tile(0), i);
      if (p.fault == 1 && i > 0) arrive(2);
    } else if (threadIdx.x >= 32) {
      wait(0, i);
      if (p.fault != 1) sum += word(tile(0));
      __syncwarp();
      if (threadIdx.x == 32) arrive(1);
      if (p.fault == 1 && i < 5) wait(2, i), sum += word(tile(0));
    }
  }
  p.out[threadIdx.x] = sum;
}
