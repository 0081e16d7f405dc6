"""Barriers, proxies, bulk stores and registers: each rule broken once, in one kernel that takes the number of the fault."""

import numpy as np
import pytest

from flashgen.emulate import EmulationFault, HostKernel, tensor_map
from flashgen.plan.kernel import Region
from tests.emulate.kernels import kernel_text, record

PARAMS = "TensorMap map; int fault;"
BODY = """
  const int warp = threadIdx.x / 32;
  const u32 full = shared + 1024, empty = shared + 1032, spare = shared + 1040;
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(full, p.fault == 1 ? 2 : 1);
    if (p.fault != 2) ptx::mbarrier_init(empty, 4);
    if (p.fault == 3) ptx::mbarrier_init(full, 1);
    if (p.fault == 4) ptx::mbarrier_init(spare, 0);
    if (p.fault == 5) ptx::mbarrier_init(spare + 4, 1);
    if (p.fault > 26) ptx::mbarrier_init(spare, 1);
    if (p.fault != 6) ptx::mbarrier_init_fence();
  }
  if (p.fault != 7) __syncthreads();
  if (threadIdx.x == 0) {
    ptx::mbarrier_expect(full, 1024);
    if (p.fault == 11) ptx::mbarrier_arrive(full);
    ptx::tma_load(shared, p.map, full, 0, 0, 0, 0);
  }
  if (p.fault != 7) __syncthreads();
  if (p.fault != 8) ptx::mbarrier_wait(full, p.fault == 9 ? 1 : 0);
  const u32 x = ptx::load_shared(shared + 4 * threadIdx.x);
  __syncwarp();
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(empty);
  if (p.fault == 12 && threadIdx.x == 0) ptx::store_shared(empty, 1);
  ptx::mbarrier_wait(empty, 0);
  if (p.fault == 14) ptx::bar_sync(16, 128);
  if (p.fault == 15) ptx::bar_sync(1, 100);
  if (p.fault == 16) ptx::bar_arrive(1, threadIdx.x < 32 ? 64 : 128);
  if (p.fault == 17) ptx::bar_arrive(1, 128), ptx::bar_arrive(1, 128);
  ptx::store_shared(shared + 4 * (p.fault == 18 ? threadIdx.x ^ 32 : threadIdx.x), x + 1);
  if (p.fault == 18) ptx::load_shared(shared + 4 * threadIdx.x);
  if (p.fault != 19) ptx::async_proxy_fence();
  if (p.fault != 20) __syncthreads();
  if (threadIdx.x == 0) {
    ptx::tma_store_as(ptx::passing(), p.map, shared, 0, 0, 0, 0);
    if (p.fault != 21) ptx::tma_store_commit();
    if (p.fault != 22 && p.fault != 23) ptx::tma_store_wait_read();
    if (p.fault == 23) ptx::store_shared(shared, 1);
    if (p.fault != 22) ptx::tma_store_wait();
  }
  if (p.fault == 25 && warp == 0) ptx::more_registers<240>(), ptx::fewer_registers<248>();
  if (p.fault == 26) ptx::load_shared(shared + 2);
  if (p.fault == 27 && threadIdx.x % 64 == 0) ptx::mbarrier_arrive(spare);
  if (p.fault == 28 && threadIdx.x == 0) ptx::mbarrier_arrive(spare);
  if (p.fault == 28) ptx::mbarrier_wait(spare, 0);
  __syncwarp();
  if (p.fault == 28 && threadIdx.x == 0) ptx::mbarrier_arrive(spare);
"""
FAULTS = {
    1: r"deadlock: (.*\n)+.*parity 0 of `full` \(phase 0, 1 of 2 arrivals and 0 bytes missing\) at kernel.cu",
    2: "no mbarrier was initialised at `empty`",
    3: "mbarrier `full` initialised twice",
    4: "mbarrier.init with count 0",
    5: "not 8-byte aligned",
    6: "used by TMA with no fence.mbarrier_init",
    7: "used before its initialisation is known to this warp|no mbarrier was initialised",
    8: r"race: warp . reads `tile.*, written by the TMA load of `full` with no wait in between(.*\n)+.*a wait for `full`",
    9: "race: warp . reads `tile.*, written by the TMA load of `full`",
    11: r"`full` .*: one arrival more than its count",
    12: "warp 0 writes the bytes of a live mbarrier, at `empty`",
    14: "named barrier 16",
    15: "named barrier 1 with 100 threads",
    16: r"named barrier 1 \(\d+ of \d+ threads arrived\): this thread says",
    17: "this thread arrives a second time",
    18: r"race: warp . (reads|writes) `tile.*`, (still read|written) by warp \d",
    19: r"reads `tile.*through the async proxy, stored by warp . with no fence.proxy.async",
    20: r"race: (the TMA store of warp 0 reads `tile.*, written by warp .|warp . writes `tile.*still read by the TMA store)",
    21: "TMA stores nobody waited for",
    22: "TMA stores nobody waited for",
    23: "race: (warp 0 writes `tile.*, still read by the TMA store|the TMA store of warp 0 reads `tile.*written by) ",
    25: "setmaxnreg to 2.. from 2.. registers",
    26: "4 bytes at `tile.*`: not aligned",
    27: r"smem\+0x410 .*: arrives without knowing that the phase before has ended",
    28: r"smem\+0x410 .*: its phase ends without knowing that warp \d has seen the end of the one before|deadlock",
}


def run(fault, seed=0):
    x = np.arange(256, dtype=np.float32).reshape(1, 1, 8, 32)
    regions = [Region("tile", "TILE", 0, 1024), Region("full", "FULL", 1024, 8), Region("empty", "EMPTY", 1032, 8)]
    values = record(PARAMS, map=tensor_map(x, (1, 1, 8, 32)), fault=fault)
    HostKernel(kernel_text(PARAMS, BODY, threads=128)).launch(1, 128, 1088, values, seed, regions=regions)
    return x.reshape(-1).view(np.uint32) - np.arange(256, dtype=np.float32).view(np.uint32)


@pytest.mark.parametrize("seed", range(4))
def test_nothing_to_find(seed):
    assert (run(0, seed)[:128] == 1).all()


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("seed", [0, 1, 3])
def test_faults(fault, seed):
    with pytest.raises(EmulationFault, match=FAULTS[fault]):
        run(fault, seed)


WAITED = r"deadlock.*\n  threads .* wait for setmaxnreg.inc to \d+: too few free registers, the launch gave %d a thread"
TRADES = """  if (threadIdx.x < 128) asm volatile("setmaxnreg.dec.sync.aligned.u32 %d;");
  else asm volatile("setmaxnreg.inc.sync.aligned.u32 %d;");"""


def trade(load, compute, threads, promised=0, blocks=1):
    text = kernel_text("int n;", TRADES % (load, compute), threads=promised or threads, blocks=blocks)
    HostKernel(text).launch(1, threads, 0, record("int n;"))


@pytest.mark.parametrize(("load", "compute"), [(40, 232), (24, 240)])
def test_warpgroups_trade_the_registers_of_the_launch(load, compute):
    trade(load, compute, 384)  # 168 each


def test_more_registers_than_the_launch_has_are_waited_for_in_vain():
    with pytest.raises(EmulationFault, match=WAITED % 168):
        trade(32, 240, 384)


def test_a_single_warp_more_takes_the_registers_of_four():
    """Each of 544 threads has 96, as if it were 640: what warpgroups of 512 trade is not there."""
    trade(72, 136, 512)
    with pytest.raises(EmulationFault, match=WAITED % 96):
        trade(72, 136, 544)


def test_launch_bounds_above_the_block_leave_it_fewer_registers():
    with pytest.raises(EmulationFault, match=WAITED % 128):
        trade(40, 232, 384, promised=512)


def test_a_block_promised_beside_another_has_half_the_registers():
    with pytest.raises(EmulationFault, match=WAITED % 80):
        trade(40, 232, 384, blocks=2)
