"""Each instruction alone, on random operands: the same kernels run on the emulator and, for the record, on an H100."""

import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.emulate.kernels import bits, kernel_text

Array = NDArray[Any]
TILE = 1024  # of shared memory, where operands begin
WGMMA_BYTES = 65536  # of operands


@dataclass(frozen=True)
class Case:
    """A kernel, what it reads, and what it writes."""

    name: str
    params: str
    body: str
    inputs: dict[str, Array]
    outputs: dict[str, tuple[tuple[int, ...], str]]
    scalars: dict[str, int] = field(default_factory=dict)
    maps: dict[str, tuple[str, tuple[int, int]]] = field(default_factory=dict)  # a member: the array [B, S, H, D], its box (columns, rows)
    threads: int = 32
    shared_bytes: int = 4096
    before: str = ""
    tolerance: float = 0.0  # relative; 0: exact

    @property
    def text(self) -> str:
        return kernel_text(self.params, self.body, self.before, self.threads)

    @property
    def digest(self) -> str:
        """A name for the text that a recorded result belongs to; how it is laid out in lines changes nothing."""
        data = [
            " ".join(self.text.split()),
            repr((self.scalars, self.maps, self.outputs)),
            *(x.tobytes().hex() for x in self.inputs.values()),
        ]
        return hashlib.sha256("\0".join(data).encode()).hexdigest()


def cases() -> list[Case]:
    return [*products(), *warp_products(), *matrices(), numbers(), *copies(), *boxes()]


def random(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


# d = c + a b twice over, on shared memory full of small numbers: whatever a descriptor names, the product is exact.
PRODUCT_PARAMS = "const u32* memory_in; const u32* fragments; const float* c; float* out; u64 a_bits, b_bits; int accumulate;"
PRODUCT = """
  for (int i = threadIdx.x; i < BYTES / 4; i += 128) ptx::store_shared(shared + 1024 + 4 * i, p.memory_in[i]);
  ptx::async_proxy_fence();
  __syncthreads();
  float d[N / 2];
  u32 fragment[4];
  for (int i = 0; i < N / 2; ++i) d[i] = p.c[threadIdx.x * (N / 2) + i];
  for (int i = 0; i < 4; ++i) fragment[i] = p.fragments[4 * threadIdx.x + i];
  ptx::wgmma_fence();
  product(d, fragment, p.a_bits + (shared + 1024 >> 4), p.b_bits + (shared + 1024 + BYTES / 2 >> 4), p.accumulate);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  for (int i = 0; i < N / 2; ++i) p.out[threadIdx.x * (N / 2) + i] = d[i];
"""


def product_text(n: int, element: str, a: str, transposed: int) -> str:
    """`product`; a is k (in shared memory, dense along k), m (dense along m) or registers."""
    count = n // 2
    sources = [f"%{count + i}" for i in range(4 if a == "registers" else 1)]
    after = count + len(sources)
    operand = "{" + ", ".join(sources) + "}" if a == "registers" else sources[0]
    flags = f"{transposed}" if a == "registers" else f"{int(a == 'm')}, {transposed}"
    inputs = ", ".join(f'"r"(a[{i}])' for i in range(4)) if a == "registers" else '"l"(at)'
    outputs = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    name = f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{element}.{element}"
    return (
        f"constexpr int N = {n}, BYTES = {WGMMA_BYTES};\n"
        "__device__ __forceinline__ void product(float (&d)[N / 2], const u32 (&a)[4], u64 at, u64 b, int accumulate) {\n"
        f'  asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{after + 1}, 0; {name} "\n'
        f'    "{{{", ".join(f"%{i}" for i in range(count))}}}, {operand}, %{after}, p, 1, 1, {flags}; }}"\n'
        f'    : {outputs} : {inputs}, "l"(b), "r"(accumulate));\n}}\n'
    )


def descriptor(width: int, leading: int, stride: int) -> int:
    """PTX ISA 9.0, 9.7.15.5.1, matrix descriptor; offsets in bytes."""
    return leading >> 4 << 16 | stride >> 4 << 32 | {0: 0, 128: 1, 64: 2, 32: 3}[width] << 62


def products() -> Iterator[Case]:
    rng = random(0)
    shapes = [(8, "bf16"), (24, "f16"), (64, "bf16"), (128, "f16"), (176, "bf16"), (256, "f16")]
    for number, (a, transposed, width) in enumerate(itertools.product(("k", "m", "registers"), (0, 1), (128, 64, 32, 0))):
        n, element = shapes[number % len(shapes)]
        if width == 0 and (transposed or a == "m"):
            continue  # not modelled
        row = width or 16
        group = 8 * row
        across = 32 * group if width else 64 * row  # of 16-byte columns without swizzle, or of blocks as wide as the swizzle
        k_bits, mn_bits = descriptor(width, 16 if width else across, group), descriptor(width, across // 8, group)
        values = {"a_bits": mn_bits if a == "m" else k_bits, "b_bits": mn_bits if transposed else k_bits, "accumulate": number % 3 != 0}
        words = bits(rng.integers(-3, 4, WGMMA_BYTES // 2), element).view(np.uint32)
        fragments = bits(rng.integers(-3, 4, (128, 8)), element).view(np.uint32)
        c = rng.integers(-9, 10, (128, n // 2)).astype(np.float32)
        yield Case(
            f"wgmma m64n{n}k16 {element}, a {a}, b {'along n' if transposed else 'along k'}, swizzle {width}",
            PRODUCT_PARAMS,
            PRODUCT,
            {"memory_in": words, "fragments": fragments, "c": c},
            {"out": ((128, n // 2), "float32")},
            values,
            threads=128,
            shared_bytes=WGMMA_BYTES + TILE,
            before=product_text(n, element, a, transposed),
        )


WARP_PRODUCT = """
  u32 a[4];
  float d[4];
  for (int i = 0; i < 4; ++i) a[i] = p.a[4 * threadIdx.x + i], d[i] = p.c[4 * threadIdx.x + i];
  ptx::mma_@T@(d, a, p.b[2 * threadIdx.x], p.b[2 * threadIdx.x + 1]);
  for (int i = 0; i < 4; ++i) p.out[4 * threadIdx.x + i] = d[i];
"""


def warp_products() -> Iterator[Case]:
    for element in ("f16", "bf16"):
        a, b = (bits(random(1).integers(-8, 8, (32, n)), element).view(np.uint32) for n in (8, 4))
        c = random(2).integers(-9, 10, (32, 4)).astype(np.float32)
        params = "const u32* a; const u32* b; const float* c; float* out;"
        yield Case(
            f"mma.sync m16n8k16 {element}",
            params,
            WARP_PRODUCT.replace("@T@", element),
            {"a": a, "b": b, "c": c},
            {"out": ((32, 4), "float32")},
        )


LOAD_MATRICES = """
  for (int i = threadIdx.x; i < 256; i += 32) ptx::store_shared(shared + 4 * i, p.from[i]);
  __syncwarp();
  u32 r[4] = {};
  const u32 at = shared + p.rows[threadIdx.x];
  asm volatile("ldmatrix.sync.aligned.m8n8.x@N@@T@.shared.b16 {@REGISTERS@}, [%@N@];" : @OPERANDS@ : "r"(at) : "memory");
  for (int i = 0; i < 4; ++i) p.out[4 * threadIdx.x + i] = r[i];
"""
STORE_MATRICES = """
  for (int i = threadIdx.x; i < 256; i += 32) ptx::store_shared(shared + 4 * i, 0);
  __syncwarp();
  u32 r[4];
  for (int i = 0; i < 4; ++i) r[i] = p.from[4 * threadIdx.x + i];
  const u32 at = shared + p.rows[threadIdx.x];
  asm volatile("stmatrix.sync.aligned.m8n8.x@N@@T@.shared.b16 [%0], {@REGISTERS@};" :: "r"(at), @OPERANDS@ : "memory");
  __syncwarp();
  for (int i = threadIdx.x; i < 256; i += 32) p.out[i] = ptx::load_shared(shared + 4 * i);
"""


def matrices() -> Iterator[Case]:
    for n, trans, store in itertools.product((1, 2, 4), ("", ".trans"), (False, True)):
        rng = random(10 * n + len(trans))
        numbers = [f"%{i + store}" for i in range(n)]
        operands = [f'"{"" if store else "="}r"(r[{i}])' for i in range(n)]
        body = (STORE_MATRICES if store else LOAD_MATRICES).replace("@N@", str(n)).replace("@T@", trans)
        body = body.replace("@REGISTERS@", ", ".join(numbers)).replace("@OPERANDS@", ", ".join(operands))
        given = {"from": rng.integers(0, 1 << 32, 256, np.uint32), "rows": (rng.permutation(64)[:32] * 16).astype(np.uint32)}
        name = f"{'st' if store else 'ld'}matrix x{n}{trans}"
        yield Case(name, "const u32* from; const u32* rows; u32* out;", body, given, {"out": ((256,) if store else (32, 4), "uint32")})


NUMBERS = """
  const float x = p.x[threadIdx.x], y = p.x[threadIdx.x ^ 1];
  float* out = p.out + 7 * threadIdx.x;
  out[0] = ptx::exp2(x), out[1] = ptx::log2(x), out[2] = ptx::tanh(x), out[3] = ptx::sqrt(x);
  asm("rcp.approx.f32 %0, %1;" : "=f"(out[4]) : "f"(x));
  out[5] = ptx::minimum(x, y), out[6] = ptx::maximum(x, y);
  p.words[2 * threadIdx.x] = ptx::bf16x2(x, y), p.words[2 * threadIdx.x + 1] = ptx::f16x2(x, y);
"""


def numbers() -> Case:
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, 1e-40, -126.5, -127.0, 127.99, 128.0, 3e38, -3e38, 65504, 65520, 1e-8]
    x = np.concatenate([np.array(special, np.float32), random(3).standard_normal(1008).astype(np.float32) * 10])
    outputs = {"out": ((1024, 7), "float32"), "words": ((1024, 2), "uint32")}
    params = "const float* x; float* out; u32* words;"
    return Case("numbers", params, NUMBERS, {"x": x}, outputs, threads=1024, tolerance=2.0**-10)  # tanh.approx: 2^-11


COPIES = """
  for (int i = 0; i < 4; ++i) ptx::store_shared(shared + 16 * threadIdx.x + 4 * i, 0xFFFFFFFF);
  const u32 to = shared + 16 * threadIdx.x;
  const u32* from = p.x + 4 * threadIdx.x;
  asm volatile("cp.async.@C@.shared.global [%0], [%1], @N@, %2;" :: "r"(to), "l"(from), "r"(p.bytes[threadIdx.x]) : "memory");
  ptx::copy_commit();
  ptx::copy_wait<0>();
  for (int i = 0; i < 4; ++i) p.out[4 * threadIdx.x + i] = ptx::load_shared(shared + 16 * threadIdx.x + 4 * i);
"""


def copies() -> Iterator[Case]:
    for size in (4, 8, 16):
        given = {"x": random(4).integers(0, 1 << 32, (32, 4), np.uint32), "bytes": random(size).integers(0, size + 1, 32).astype(np.int32)}
        body = COPIES.replace("@C@", "cg" if size == 16 else "ca").replace("@N@", str(size))
        yield Case(f"cp.async {size}", "const u32* x; const int* bytes; u32* out;", body, given, {"out": ((32, 4), "uint32")})


BOXES = """
  if (threadIdx.x == 0) ptx::mbarrier_init(shared, 1), ptx::mbarrier_init_fence();
  __syncthreads();
  if (threadIdx.x == 0) {
    ptx::mbarrier_expect(shared, p.bytes);
    ptx::@LOAD@shared + 1024, p.from, shared, p.column, p.row, p.head, p.batch);
  }
  ptx::mbarrier_wait(shared, 0);
  for (int i = threadIdx.x; i < p.bytes / 4; i += 32) p.raw[i] = ptx::load_shared(shared + 1024 + 4 * i);
  if (threadIdx.x == 0) {
    ptx::tma_store_as(ptx::passing(), p.to, shared + 1024, max(p.column, 0), max(p.row, 0), p.head, p.batch);   // no kernel writes before the first row
    ptx::tma_store_commit();
    ptx::tma_store_wait();
  }
"""  # noqa: E501


def boxes() -> Iterator[Case]:
    given = ((64, 24, 30, 0), (64, 24, -5, 64), (32, 40, 0, 32), (16, 8, 40, -16))
    for (columns, rows, row, column), load in zip(given, ("tma_load(", "tma_load_as(ptx::passing(), ") * 2, strict=True):
        shape = (2, 50, 3, 72)
        x = random(columns).integers(0, 1 << 16, shape).astype(np.uint16)
        scalars = {"column": column, "row": row, "head": 1, "batch": 1, "bytes": columns * rows * 2}
        yield Case(
            f"bulk tensor copies, box {columns} x {rows} at {column}, {row}",
            "TensorMap from, to; u32* raw; int column, row, head, batch, bytes;",
            BOXES.replace("@LOAD@", load),
            {"x": x},
            {"raw": ((columns * rows // 2,), "uint32"), "y": (shape, "uint16")},
            scalars,
            {"from": ("x", (columns, rows)), "to": ("y", (columns, rows))},
            shared_bytes=TILE + columns * rows * 2,
        )
