"""Races on global memory: between blocks, between warps of one, between a kernel and the next."""

import numpy as np
import pytest

from flashgen.emulate import EmulationFault, HostKernel
from flashgen.emulate.memory import Watched
from tests.emulate.kernels import kernel_text, record

MERGE_PARAMS = "float* parts; float* out; int* counter;"
MERGE = """  p.parts[blockIdx.x * 64 + threadIdx.x] = threadIdx.x;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    const u32 before = atomicAdd(p.counter, 1);
    __threadfence();
    ptx::store_shared(shared, before);
  }
  __syncthreads();
  if (ptx::load_shared(shared) != gridDim.x - 1) return;
  float sum = 0;
  for (u32 i = 0; i < gridDim.x; ++i) sum += p.parts[i * 64 + (threadIdx.x + 32) % 64];
  p.out[threadIdx.x] = sum;"""  # by the block that arrives last


def merge(seed, body=MERGE, blocks=5):
    parts, out, counter = np.zeros((blocks, 64), np.float32), np.zeros(64, np.float32), np.zeros(1, np.int32)
    arrays = {"parts": Watched(parts, "fill"), "out": Watched(out, "fill"), "counter": Watched(counter)}
    kernel = HostKernel(kernel_text(MERGE_PARAMS, body))
    kernel.launch(blocks, 64, 16, record(MERGE_PARAMS, parts=parts, out=out, counter=counter), seed, arrays=arrays)
    return out


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("old", "found"),
    [
        (
            "[blockIdx.x * 64 + threadIdx.x] = threadIdx.x;\n  __threadfence();",
            "block . reads `parts`.*, written by block ., nothing orders",
        ),
        ("  __threadfence();\n  __syncthreads();", "(block . reads `parts`.*, written by block ., nothing orders)|another warp or unit"),
        ("atomicAdd(p.counter, 1);\n    __threadfence();", "block . reads `parts`.*, written by block ., nothing orders the two"),
    ],
)
def test_the_last_block_may_read_what_the_others_wrote_with_every_fence_and_barrier(seed, old, found):
    assert (merge(seed) == 5 * ((np.arange(64) + 32) % 64)).all()
    with pytest.raises(EmulationFault, match=found):
        merge(seed, MERGE.replace(old, old.rpartition("\n")[0]))


PIECES_PARAMS = "float* x; int stride, first, fill;"
PIECES = kernel_text(
    PIECES_PARAMS,
    """  float* mine = p.x + p.first + blockIdx.x * p.stride;
  if (p.fill) mine[threadIdx.x] = 1;
  else atomicAdd(mine + threadIdx.x, p.stride ? mine[(threadIdx.x + 32) % 64] : 1.0f);""",
)


def pieces(watched, ordinal=1, threads=32, **values):
    call = {"stride": 32, "first": 0, "fill": 1} | values
    HostKernel(PIECES).launch(3, threads, 0, record(PIECES_PARAMS, x=watched.array, **call), arrays={"x": watched}, ordinal=ordinal)


def test_blocks_write_apart_from_each_other():
    pieces(Watched(np.zeros(96, np.float32), "fill"))
    with pytest.raises(EmulationFault, match=r"race: block . writes `x`\+0x7c, written by block ., nothing orders the two") as caught:
        pieces(Watched(np.zeros(96, np.float32), "fill"), stride=31)
    assert "the other side, kernel.cu:" in str(caught.value)


def test_atomics_only_on_what_an_earlier_kernel_wrote():
    x = Watched(np.zeros(256, np.float32), "fill")
    pieces(x, stride=64)
    with pytest.raises(EmulationFault, match=r"`x`.* is changed by an atomic, and nobody has written it"):
        pieces(x, 2, stride=0, first=32, fill=0)


def test_reads_only_of_what_somebody_wrote():
    x = Watched(np.zeros(192, np.float32), "fill")
    pieces(x, stride=64)
    with pytest.raises(EmulationFault, match=r"`x`\+0x80 is read, and nobody has written it"):
        pieces(x, 2, stride=64, fill=0)
    pieces(Watched(np.zeros(192, np.float32)), stride=64, fill=0)


def test_warps_of_a_block_need_a_barrier():
    with pytest.raises(EmulationFault, match=r"race: block . reads `x`.*, changed by an atomic of another warp or unit of it"):
        pieces(Watched(np.zeros(192, np.float32)), threads=64, stride=64, fill=0)


def test_what_is_only_read_is_not_written():
    with pytest.raises(EmulationFault, match="`x` is written, which the kernels only read"):
        pieces(Watched(np.zeros(96, np.float32), "read"))


def test_a_sum_is_a_read_and_a_write():
    x = Watched(np.zeros(32, np.float32))
    kernel = HostKernel(kernel_text("float* x;", "  p.x[threadIdx.x] += 1.0f;"))
    kernel.launch(1, 32, 0, record("float* x;", x=x.array), arrays={"x": x})
    with pytest.raises(EmulationFault, match=r"race: block . (reads|writes) `x`.*, written by block ., nothing orders the two"):
        kernel.launch(2, 32, 0, record("float* x;", x=x.array), arrays={"x": x}, ordinal=2)


FOURS = """  const u32 i = threadIdx.x * 4;
  ptx::store_floats(p.x + i, i, i + 1, i + 2, i + 3);
  __syncthreads();
  float x[4];
  ptx::load_floats(x, p.x + (i + 128) % 256);
  for (int j = 0; j < 4; ++j) p.y[i + j] = x[j];"""


def fours(body=FOURS, floats=256):
    x, y = np.zeros(floats, np.float32), np.zeros(256, np.float32)
    kernel = HostKernel(kernel_text("float* x; float* y;", body))
    kernel.launch(1, 64, 0, record("float* x; float* y;", x=x, y=y), arrays={"x": Watched(x, "fill"), "y": Watched(y, "fill")})
    return y


def test_four_floats_at_a_time_are_judged_as_single_ones():
    assert (fours() == (np.arange(256) + 128) % 256).all()
    with pytest.raises(EmulationFault, match=r"written by another warp|nobody has written it"):
        fours(FOURS.replace("  __syncthreads();\n", ""))
    with pytest.raises(EmulationFault, match="is read, and nobody has written it"):
        fours(FOURS.replace("store_floats(p.x + i", "store_floats(p.y + i"))
    with pytest.raises(EmulationFault, match="outside its 1008 bytes"):
        fours(floats=252)
    with pytest.raises(EmulationFault, match="not 16-byte aligned"):
        fours(FOURS.replace("p.x + i,", "p.x + i + 1,"))


TIMES_PARAMS = "float* x; int word;"
TIMES = kernel_text(
    TIMES_PARAMS,
    """  if (threadIdx.x == 0) p.x[0] = 1;
  __syncthreads();
  if (threadIdx.x == 0) p.x[1] = 2;
  if (threadIdx.x == 32) p.x[2] = p.x[p.word];""",
)


def test_each_word_has_its_own_time():
    """The other warp may read the first of one warp's two words in 16 bytes, which a barrier follows, not the second."""
    x = Watched(np.zeros(4, np.float32))
    HostKernel(TIMES).launch(1, 64, 0, record(TIMES_PARAMS, x=x.array, word=0), arrays={"x": x})
    assert (x.array[:3] == [1, 2, 1]).all()
    with pytest.raises(EmulationFault, match=r"race: block 0 (reads|writes) `x`\+0x4, (written|read) by another warp or unit of it"):
        HostKernel(TIMES).launch(1, 64, 0, record(TIMES_PARAMS, x=x.array, word=1), arrays={"x": x}, ordinal=2)


OVERLAP_PARAMS = "const float* in; float* out; int shift;"
OVERLAP = """  const u32 at = shared + 16 * threadIdx.x;
  ptx::copy_async_16(at, p.in + 4 * threadIdx.x, true);
  ptx::copy_async_16(at + 512 + p.shift, p.in + 4 * threadIdx.x, true);
  ptx::copy_commit();
  ptx::copy_wait<0>();
  p.out[threadIdx.x] = __uint_as_float(ptx::load_shared(at));"""


def test_copies_that_are_judged_together_are_told_apart():
    x, out = np.arange(128, dtype=np.float32), np.zeros(32, np.float32)
    kernel = HostKernel(kernel_text(OVERLAP_PARAMS, OVERLAP))
    kernel.launch(1, 32, 1024, record(OVERLAP_PARAMS, **{"in": x}, out=out, shift=0))
    assert (out == x[::4]).all()
    with pytest.raises(EmulationFault, match=r"writes smem\+0x400, outside the block's 1024 bytes") as caught:
        kernel.launch(1, 32, 1024, record(OVERLAP_PARAMS, **{"in": x}, out=out, shift=512))
    assert "copy_async_16(at + 512 + p.shift" in str(caught.value)


HANDED_ON = """  if (threadIdx.x == 0) {
    p.x[0] = 1.0f;
    __threadfence();
    atomicAdd(p.count, 1);
  }
  if (threadIdx.x == 32) {
    while (ptx::load_acquire(p.count) == 0) {}
    p.x[1] = p.x[0];
  }"""


def handed_on(body):
    x, count, of = np.zeros(2, np.float32), np.zeros(1, np.int32), "float* x; int* count;"
    HostKernel(kernel_text(of, body)).launch(1, 64, 0, record(of, x=x, count=count), arrays={"x": Watched(x), "count": Watched(count)})
    return x


def test_a_word_that_is_loaded_with_acquire_hands_on_what_warps_of_the_same_block_did():
    assert (handed_on(HANDED_ON) == 1).all()
    with pytest.raises(EmulationFault, match=r"race: block 0 reads `x`"):
        handed_on(HANDED_ON.replace("    __threadfence();\n", ""))
