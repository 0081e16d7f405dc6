"""Boxes of arrays of two to five dimensions, any swizzle, beyond every edge; and the rules of the driver."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashgen.emulate import EmulationFault, HostKernel, tensor_map
from flashgen.errors import BackendError
from tests.emulate.kernels import kernel_text, record

PARAMS = "TensorMap from, to; u32* raw; int c0, c1, c2, c3, c4, bytes;"
BODY = """
  if (threadIdx.x == 0) ptx::mbarrier_init(shared, 1), ptx::mbarrier_init_fence();
  __syncthreads();
  if (threadIdx.x == 0) {
    ptx::mbarrier_expect(shared, p.bytes);
    asm volatile("cp.async.bulk.tensor.@R@d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {@LOAD@}], [%2];"
      :: "r"(shared + 1024), "l"(&p.from), "r"(shared), @COORDINATES@ : "memory");
  }
  ptx::mbarrier_wait(shared, 0);
  for (int i = threadIdx.x; i < p.bytes / 4; i += 32) p.raw[i] = ptx::load_shared(shared + 1024 + 4 * i);
  if (threadIdx.x == 0) {
    asm volatile("cp.async.bulk.tensor.@R@d.global.shared::cta.tile.bulk_group [%0, {@STORE@}], [%1];"
      :: "l"(&p.to), "r"(shared + 1024), @TO@ : "memory");
    ptx::tma_store_commit();
    ptx::tma_store_wait();
  }
"""


def text(rank):
    parts = {"R": str(rank), "COORDINATES": ", ".join(f'"r"(p.c{i})' for i in range(rank))}
    parts["TO"] = ", ".join(f'"r"(max(p.c{i}, 0))' for i in range(rank))  # a store begins inside
    parts |= {"LOAD": ", ".join(f"%{i + 3}" for i in range(rank)), "STORE": ", ".join(f"%{i + 2}" for i in range(rank))}
    body = BODY
    for name, part in parts.items():
        body = body.replace(f"@{name}@", part)
    return kernel_text(PARAMS, body)


@given(data=st.data())
@settings(max_examples=60)
def test_boxes(data):
    rank = data.draw(st.integers(2, 5), "rank")
    swizzle = data.draw(st.sampled_from([0, 32, 64, 128]), "swizzle")
    size = data.draw(st.sampled_from([2, 4]), "itemsize")
    columns = data.draw(st.integers(1, (swizzle or 256) // 16), "chunks") * 16 // size if swizzle == 0 else swizzle // size
    box = (*(data.draw(st.integers(1, 3)) for _ in range(rank - 2)), data.draw(st.integers(1, 40), "rows"), columns)
    shape = (
        *(data.draw(st.integers(1, 4)) for _ in range(rank - 2)),
        data.draw(st.integers(1, 50)),
        data.draw(st.integers(1, 10)) * 16 // size,
    )
    at = [data.draw(st.integers(-2, n)) for n in shape[:-1]] + [data.draw(st.integers(-1, 2)) * columns]
    dtype = np.uint16 if size == 2 else np.uint32
    x = np.random.default_rng(0).integers(1, 1 << 15, shape).astype(dtype)
    y, nbytes = np.zeros_like(x), int(np.prod(box)) * size
    raw = np.zeros(nbytes // 4, np.uint32)
    values = {"from": tensor_map(x, box, swizzle), "to": tensor_map(y, box, swizzle), "raw": raw, "bytes": nbytes}
    values |= {f"c{i}": c for i, c in enumerate(reversed(at))}
    HostKernel(text(rank)).launch(1, 32, 1024 + nbytes, record(PARAMS, **values))
    index = np.meshgrid(*(np.arange(a, a + b) for a, b in zip(at, box, strict=True)), indexing="ij")
    inside = np.logical_and.reduce([(i >= 0) & (i < n) for i, n in zip(index, shape, strict=True)])
    want = np.where(inside, x[tuple(np.clip(i, 0, n - 1) for i, n in zip(index, shape, strict=True))], 0)
    address = np.arange(nbytes // 16)  # of chunks; the window begins at a multiple of 1024
    chunk = address ^ (address // 8 % max(1, swizzle // 16))
    assert (raw.reshape(-1, 4)[chunk].reshape(-1).view(dtype) == want.reshape(-1)).all()
    at = [max(a, 0) for a in at]
    index = np.meshgrid(*(np.arange(a, a + b) for a, b in zip(at, box, strict=True)), indexing="ij")
    inside = np.logical_and.reduce([i < n for i, n in zip(index, shape, strict=True)])
    written = np.zeros_like(x)
    written[tuple(i[inside] for i in index)] = want[inside]
    assert (y == written).all()


def test_a_store_before_the_first_row_is_no_instruction():
    x = np.zeros((8, 64), np.uint16)
    given = {"from": tensor_map(x, (8, 64), 128), "to": tensor_map(x, (8, 64), 128), "raw": np.zeros(256, np.uint32), "bytes": 1024}
    kernel = HostKernel(text(2).replace("max(p.c1, 0)", "p.c1"))
    with pytest.raises(EmulationFault, match="store at a negative coordinate"):
        kernel.launch(1, 32, 2048, record(PARAMS, **given, c0=0, c1=-1))


@pytest.mark.parametrize(
    ("array", "box", "swizzle", "rule"),
    [
        (np.zeros(64, np.float16), (64,), 128, "2 to 5 dimensions, not 1"),
        (np.zeros((8, 64), np.float16).T, (64, 8), 0, "a dense last axis"),
        (np.zeros((8, 65), np.float16)[:, :64], (8, 64), 128, "strides in multiples of 16 bytes"),
        (np.zeros((8, 72), np.float16)[:, 1:65], (8, 64), 128, "an address in multiples of 16 bytes"),
        (np.zeros((8, 64), np.float16), (257, 64), 128, "a box of 1 to 256"),
        (np.zeros((0, 64), np.float16), (1, 64), 128, "no dimension of length 0"),
        (np.zeros((8, 64), np.float16), (8, 20), 64, "box rows in multiples of 16 bytes, not 40"),
        (np.zeros((8, 128), np.float16), (8, 128), 128, "box rows of at most the swizzle's 128 bytes, not 256"),
        (np.zeros((8, 64), np.float16), (8, 64), 16, "a swizzle of 128, 64, 32 or 0"),
    ],
)
def test_rules_of_the_driver(array, box, swizzle, rule):
    with pytest.raises(BackendError, match=rule):
        tensor_map(array, box, swizzle)


def test_a_store_past_the_tensor_reads_shared_memory_all_the_same():
    """Its elements are dropped, and yet all of its box has to lie in the block's memory."""
    x, y = np.ones((4, 8), np.uint32), np.zeros((4, 8), np.uint32)
    values = {
        "from": tensor_map(x, (4, 8), 0),
        "to": tensor_map(y, (4, 8), 0),
        "raw": np.zeros(32, np.uint32),
        "bytes": 128,
        "c0": 8,
        "c1": 0,
    }
    changed = text(2).replace('"l"(&p.to), "r"(shared + 1024)', '"l"(&p.to), "r"(shared + 1152)')
    with pytest.raises(EmulationFault, match=r"the TMA store of warp 0 reads .*, outside the block's 1152 bytes"):
        HostKernel(changed).launch(1, 32, 1152, record(PARAMS, **values))
