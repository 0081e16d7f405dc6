"""Threads, blocks and memory: what a launch does, and what it refuses."""

import re

import numpy as np
import pytest

from flashgen.emulate import EmulationFault, HostKernel, MissingTwin, machine
from flashgen.emulate.memory import Watched, fence
from flashgen.errors import BackendError, CompileError
from flashgen.plan.kernel import Region
from tests.emulate.kernels import kernel_text, record

TRANSPOSE_PARAMS = "const float* in; float* out; int shift, missing;"
TRANSPOSE = kernel_text(
    TRANSPOSE_PARAMS,
    """  ptx::store_shared(shared + 4 * threadIdx.x + p.shift, __float_as_uint(p.in[threadIdx.x]));
  if (!p.missing) __syncthreads();
  p.out[threadIdx.x] = __uint_as_float(ptx::load_shared(shared + 4 * (threadIdx.x % 16 * 16 + threadIdx.x / 16)));""",
)


def transpose(seed=0, **values):
    x, y = np.random.default_rng(0).random((16, 16), np.float32), np.zeros((16, 16), np.float32)
    regions = [Region("tile", "TILE", 0, 512, 2)]
    HostKernel(TRANSPOSE).launch(1, 256, 1024, record(TRANSPOSE_PARAMS, **{"in": x}, out=y, **values), seed, regions=regions)
    return x, y


@pytest.mark.parametrize("seed", range(5))
def test_a_missing_barrier_is_a_race_under_every_seed(seed):
    x, y = transpose(seed)
    assert (y == x.T).all()
    with pytest.raises(
        EmulationFault, match=r"race: warp . reads `tile\[.\].*`, (never written|written by warp . with no wait in between)"
    ):
        transpose(seed, missing=1)


def test_outside_the_memory_asked_for():
    with pytest.raises(EmulationFault, match=r"warp 7 writes smem\+0x400, outside the block's 1024 bytes"):
        transpose(shift=4)


def test_a_report_has_line_thread_source_and_advice():
    with pytest.raises(EmulationFault) as caught:
        transpose(shift=4)
    line = next(i for i, text in enumerate(TRANSPOSE.splitlines(), 1) if "p.shift" in text and "store_shared" in text)
    assert caught.value.line == line
    assert caught.value.thread == 255
    assert f"--> kernel.cu:{line}: block 0, thread 255 (warp 7, lane 31), seed 0" in str(caught.value)
    assert f"{line} | ptx::store_shared(shared + 4 * threadIdx.x + p.shift" in str(caught.value)
    assert "look at: the offset of the region" in str(caught.value)


DEADLOCK = kernel_text("int n;", "  if (threadIdx.x < 32) __syncthreads(); else ptx::bar_sync(1, 64);")


def test_a_deadlock_says_who_waits_for_what_and_where():
    with pytest.raises(EmulationFault) as caught:
        HostKernel(DEADLOCK).launch(1, 64, 0, record("int n;"))
    where = r"at kernel.cu:\d+ in forward"
    assert re.search(rf"threads 0-31 wait for named barrier 0 \(32 of 64 threads arrived\) {where}\n", str(caught.value))
    assert re.search(rf"threads 32-63 wait for named barrier 1 \(32 of 64 threads arrived\) {where}\n", str(caught.value))


def test_a_diverged_warp():
    kernel = HostKernel(kernel_text("int n;", "  if (threadIdx.x & 1) __syncwarp(); else __shfl_sync(~0u, 1, 0);"))
    with pytest.raises(EmulationFault, match="the warp diverged: this lane is at __syncwarp, others at a shuffle"):
        kernel.launch(1, 32, 0, record("int n;"))


WARPS = kernel_text(
    "int* out;",
    """  const int x = threadIdx.x * 3;
  int* out = p.out + 8 * threadIdx.x;
  out[0] = __shfl_xor_sync(~0u, x, 5);
  out[1] = __shfl_sync(~0u, x, 7);
  out[2] = __shfl_down_sync(~0u, x, 4);
  out[3] = __shfl_up_sync(~0u, x, 4);
  out[4] = __ballot_sync(~0u, x % 2 == 0);
  out[5] = __any_sync(~0u, threadIdx.x == 40);
  out[6] = __all_sync(~0u, threadIdx.x < 32);
  out[7] = min(x, 50u) + max(-1, 2);""",
)


def test_votes_and_shuffles():
    out = np.zeros((64, 8), np.int32)
    HostKernel(WARPS).launch(1, 64, 0, record("int* out;", out=out))
    t = np.arange(64)
    base, lane = t // 32 * 32, t % 32
    even = int(np.flatnonzero(t[:32] * 3 % 2 == 0).astype(np.uint64).__rpow__(2).sum())
    expected = [
        3 * (base + (lane ^ 5)),
        3 * (base + 7),
        3 * (base + np.where(lane < 28, lane + 4, lane)),
        3 * (base + np.where(lane < 4, lane, lane - 4)),
    ]
    expected += [np.full(64, even), t >= 32, t < 32, np.minimum(3 * t, 50) + 2]
    assert (out.view(np.uint32) == np.stack(expected, 1).astype(np.uint32)).all()


DEALT_PARAMS = "int* counter; int* order; int tiles, careless;"
DEALT = kernel_text(
    DEALT_PARAMS,
    """  if (threadIdx.x != 0) return;
  for (int t = blockIdx.x; t < p.tiles; t = gridDim.x + atomicAdd(p.counter, 1)) p.order[t] = blockIdx.x + 1;
  if (p.careless) {
    const int done = p.counter[1];
    atomicAdd(p.order + p.tiles, 1);
    p.counter[1] = done + 1;
  } else if (atomicAdd(p.counter + 1, 1) == gridDim.x - 1) {
    p.counter[0] = p.counter[1] = 0;
  }""",
)


FAILS = kernel_text("int first;", "  if (blockIdx.x >= p.first) ptx::load_shared(shared);")  # the first of its eight slots: 8, 16, 24


def dealt(seed, careless=0):
    counter, order = np.zeros(2, np.int32), np.zeros(41, np.int32)
    HostKernel(DEALT).launch(7, 32, 0, record(DEALT_PARAMS, counter=counter, order=order, tiles=40, careless=careless), seed)
    assert (order[:40] > 0).all()
    return tuple(order[:40]), counter


def test_blocks_take_turns_under_the_seed():
    runs = {dealt(seed)[0] for seed in range(6)}
    assert len(runs) > 3
    assert max(len(set(order)) for order in runs) > 3
    assert all((dealt(seed)[1] == 0).all() for seed in range(6))
    assert dealt(3)[0] == dealt(3)[0]


def test_cores_do_not_change_what_a_seed_gives(monkeypatch):
    orders, blocks = set(), set()
    for cores in (1, 2, 3, 20):
        monkeypatch.setattr(machine, "cores", lambda cores=cores: cores)
        orders.add(dealt(5)[0])
        with pytest.raises(EmulationFault) as caught:
            HostKernel(FAILS).launch(30, 32, 0, record("int first;", first=5))
        blocks.add(caught.value.block)
    assert len(orders) == 1
    assert blocks == {8}


def test_an_update_that_is_not_atomic_is_lost_under_some_seed():
    assert min(dealt(seed, careless=1)[1][1] for seed in range(6)) < 7


COPY_PARAMS = "const float* in; float* out; int shift;"
COPY = kernel_text(
    COPY_PARAMS,
    """  u32 x[4];
  const float* from = p.in + p.shift + 4 * threadIdx.x;
  float* to = p.out + 4 * threadIdx.x;
  asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "l"(from));
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" :: "l"(to), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]) : "memory");""",
)


def test_global_memory_has_bounds():
    x, y = np.random.default_rng(0).random(128, np.float32), np.zeros(128, np.float32)
    kernel, arrays = HostKernel(COPY), {"in": x, "out": y}
    watched = {"in": Watched(x, "read"), "out": Watched(y)}
    kernel.launch(1, 32, 0, record(COPY_PARAMS, **arrays), arrays=watched)
    assert (x == y).all()
    with pytest.raises(EmulationFault, match=r"16 bytes of global memory at `in`\+0x200, outside its 512 bytes"):
        kernel.launch(1, 32, 0, record(COPY_PARAMS, **arrays, shift=4), arrays=watched)
    with pytest.raises(EmulationFault, match="not 16-byte aligned"):
        kernel.launch(1, 32, 0, record(COPY_PARAMS, **arrays, shift=1), arrays=watched)


def test_a_record_of_another_size_is_refused():
    with pytest.raises(BackendError, match="parameter takes 8 bytes, the record given has 4"):
        HostKernel(kernel_text("int* x;", "")).launch(1, 32, 0, np.zeros(1, np.int32))


def test_an_instruction_without_a_twin_is_named():
    text = kernel_text("int n;", '  asm volatile("nanosleep.u32 20;");')
    line = text.count("\n", 0, text.index("nanosleep")) + 1
    with pytest.raises(MissingTwin, match=rf"no twin of `nanosleep.u32`, used at a.cu:{line}; declare `nanosleep_u32`"):
        HostKernel(text, name="a.cu")


def test_text_that_is_no_cpp_is_a_compile_error_with_its_line():
    with pytest.raises(CompileError, match=r"kernel.cu:\d+:\d+: error: .*undeclared_name"):
        HostKernel(kernel_text("int n;", "  undeclared_name = 1;"))
    with pytest.raises(CompileError, match=r"kernel.cu:\d+"):
        HostKernel(kernel_text("int n;", "  memory[threadIdx.x] = 1;"))


ROWS_PARAMS = "float* out; int row;"
ROWS = kernel_text(
    ROWS_PARAMS,
    """  float rows[2][3][4] = {}, others[2] = {};
  set(rows[1][p.row], 1.0f);
  p.out[threadIdx.x] = rows[1][2][3] + others[1];""",
    "__device__ __forceinline__ void set(float (&x)[4], float y) { x[3] = y; }",
)


def test_a_row_past_the_end_is_found_where_a_reference_to_it_is_made():
    kernel, out = HostKernel(ROWS), np.zeros(32, np.float32)
    kernel.launch(1, 32, 0, record(ROWS_PARAMS, out=out, row=2))
    assert (out == 1).all()
    with pytest.raises(EmulationFault, match="an access past the end of a local array") as caught:
        kernel.launch(1, 32, 0, record(ROWS_PARAMS, out=out, row=3))
    assert "set(rows" in ROWS.splitlines()[caught.value.line - 1]


TRAPS_PARAMS = "const float* in; float* out; int shift, index;"
TRAPS = kernel_text(
    TRAPS_PARAMS,
    """  struct __align__(16) Four { float x[4]; };
  float local[4] = {1, 2, 3, 4};
  local[p.index] = p.in[threadIdx.x];
  const Four four = *reinterpret_cast<const Four*>(p.in + p.shift);
  p.out[threadIdx.x] = local[threadIdx.x % 4 / (p.index == 2 ? p.shift : 1)] + four.x[1];""",
)


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({"shift": 64}, r"plain access of global memory at `in`\+0x10., outside its 256 bytes"),
        ({"shift": -1024}, "plain access of global memory at `in`-0x(ff.|1000), outside its 256 bytes"),
        ({"shift": 1}, "an access through a misaligned pointer"),
        ({"index": 2}, "a division of integers by zero"),
        ({"index": 4}, "an access past the end of a local array"),
    ],
)
def test_what_the_processor_stops_at_is_reported_with_its_line(values, found):
    x, y = fence(np.ones(64, np.float32)), np.zeros(32, np.float32)
    kernel, arrays = HostKernel(TRAPS), {"in": x, "out": y}
    watched = {"in": Watched(x, "read"), "out": Watched(y)}
    kernel.launch(1, 32, 0, record(TRAPS_PARAMS, **arrays), arrays=watched)
    with pytest.raises(EmulationFault, match=found) as caught:
        kernel.launch(1, 32, 0, record(TRAPS_PARAMS, **arrays, **values), arrays=watched)
    assert "local[" in TRAPS.splitlines()[caught.value.line - 1] or "Four" in TRAPS.splitlines()[caught.value.line - 1]
    kernel.launch(1, 32, 0, record(TRAPS_PARAMS, **arrays), arrays=watched)
