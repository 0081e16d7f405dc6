// P45 More registers than the pool has: 80 + 2 * 224 > 3 * 168.
extern "C" __global__ void __launch_bounds__(384, 1) p45(const __grid_constant__ Params p) {
  if (threadIdx.x < 128) {
    if (p.fault == 1) ptx::fewer_registers<80>();
    else if (p.fault == -1) ptx::fewer_registers<24>();
    else ptx::fewer_registers<40>();
  } else if (p.fault == 1) ptx::more_registers<224>();
  else if (p.fault == -1) ptx::more_registers<240>();
  else ptx::more_registers<232>();
}

// P45 for two groups, of 128: 24 + 240 > 256.
extern "C" __global__ void __launch_bounds__(256, 2) p45_of_two(const __grid_constant__ Params p) {
  if (threadIdx.x < 128) ptx::fewer_registers<24>();
  else if (p.fault == 1) ptx::more_registers<240>();
  else ptx::more_registers<232>();
}

// P51 setmaxnreg by one warp of four; twice with nothing between; upwards to fewer; to what is no multiple of 8.
extern "C" __global__ void __launch_bounds__(384, 1) p51(const __grid_constant__ Params p) {
  if (threadIdx.x < 128) {
    ptx::fewer_registers<40>();
    if (p.fault != 2) ptx::bar_sync(1, 128);
    ptx::more_registers<80>();
  } else if (threadIdx.x < 256) {
    if (p.fault == 1 && threadIdx.x < 160) ptx::more_registers<240>();
    else if (p.fault == 3) ptx::more_registers<152>();
    else if (p.fault == 4) ptx::fewer_registers<156>();
    else if (p.fault != 1) ptx::fewer_registers<152>();
  }
}
