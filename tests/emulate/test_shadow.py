"""The race checker's memory of 16 bytes of shared memory: who read them, be it nine warps, for a write of any part."""

import pytest

from flashgen.emulate import EmulationFault, HostKernel
from tests.emulate.kernels import kernel_text, record

BODY = """\
  const int warp = threadIdx.x / 32;
  if (threadIdx.x < 4) ptx::store_shared(shared + 4 * threadIdx.x, 1);
  __syncthreads();
  u32 x[4];
  if (warp < 9) ptx::load_shared_x4(x, shared);
  if (warp != p.late) asm volatile("bar.sync 1, 288;");
  if (threadIdx.x == 32 * 9) ptx::store_shared(shared + 4 * p.part, 2);
"""
PARAMS = "int late; int part;"


@pytest.mark.parametrize("part", [0, 3])
@pytest.mark.parametrize("late", range(9))
def test_every_reader_is_remembered(late, part):
    kernel, found = HostKernel(kernel_text(PARAMS, BODY)), []
    for seed in range(4):
        with pytest.raises(EmulationFault, match=r"race: warp . (reads|writes) smem\+0, (still read|written) by warp .") as caught:
            kernel.launch(1, 320, 1024, record(PARAMS, late=late, part=part), seed)
        found.append(str(caught.value).split(",")[:2])
    assert all(f"warp {late}" in "".join(sides) and "warp 9" in "".join(sides) for sides in found)
    assert any("still read" in sides[1] for sides in found)
