"""Few queries against many keys: GB/s of keys and values, or TFLOP/s where queries are many, beside cuDNN, FlashAttention and plain loads.

    python benchmarks/decode.py            # all shapes, written to benchmarks/results/decode_<card>.json
    python benchmarks/decode.py --quick    # less of each, nothing written

bfloat16, causal: the queries are the last tokens. `loads` reads the bytes of k and v and computes nothing. A peer that is not installed, or
refuses a shape, leaves its cell empty. `off` is the largest difference between flashgen's o and a peer's, over the largest o. Times are of
calls that the host has queued before, and of replays of CUDA graphs. Needs a GPU.
"""

import argparse
import importlib.util
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, cast

from flashgen.api import Attention
from flashgen.arch import Arch
from flashgen.bench.cases import rounded
from flashgen.bench.peers import to_torch
from flashgen.bench.results import card_name, environment
from flashgen.bench.timing import measure
from flashgen.plan.geometry import Sizes
from flashgen.plan.program import Program
from flashgen.render import render
from flashgen.runtime import arrays, cache, device
from flashgen.runtime.choice import Choice
from flashgen.runtime.clock import DeviceClock
from flashgen.spec import Spec

RESULTS = Path(__file__).parent / "results"
OURS = {"flashgen": "invariant", "flashgen auto": "auto"}
NOISE = 1 << 24  # numbers that are drawn; arrays repeat them
Call = Callable[[], Any]


@dataclass(frozen=True)
class Shape:
    """The sizes of a call. `flops`: it is bound by products, which count."""

    batch: int
    q_len: int
    kv_len: int
    heads: int
    kv_heads: int
    head_dim: int
    flops: bool = False

    @property
    def text(self) -> str:
        """The shape in a few words."""
        return f"B{self.batch} q{self.q_len} k{self.kv_len} {self.heads}/{self.kv_heads} D{self.head_dim}"

    @property
    def sizes(self) -> Sizes:
        """The sizes of a call."""
        return Sizes(batch=self.batch, q_len=self.q_len, kv_len=self.kv_len, heads=self.heads, kv_heads=self.kv_heads)

    @property
    def keys(self) -> int:
        """Numbers of k."""
        return self.batch * self.kv_len * self.kv_heads * self.head_dim

    def rate(self, ms: float) -> float:
        """TFLOP/s of all pairs of a query and a key, or GB/s of k and v."""
        flops = 4 * self.batch * self.heads * self.q_len * self.kv_len * self.head_dim
        return flops / ms / 1e9 if self.flops else 4 * self.keys / ms / 1e6


TOKEN = [
    Shape(64, 1, 8192, 32, 8, 128),
    Shape(1, 1, 131072, 32, 8, 128),
    Shape(16, 1, 4096, 32, 32, 128),
    Shape(128, 1, 2048, 64, 8, 64),
]
TOKENS = [Shape(64, n, 8192, 32, 8, 128) for n in (2, 4, 8, 16, 32)]
OTHERS = [Shape(1, 1, 2048, 64, 8, 128), Shape(128, 1, 8192, 32, 2, 256)]
CHUNKS = [Shape(1, 512, 65536, 8, 1, 128, flops=True), Shape(1, 1024, 63488, 9, 9, 128, flops=True)]


def spec_of(shape: Shape, split: str) -> Spec:
    """The spec that a shape is called with."""
    return Spec(head_dim=shape.head_dim, dtype="bfloat16", mask="causal", name="decode", split=split)


def drawn(shape: Shape) -> tuple[Any, Any, Any]:
    """q, k, v [B, S, H, D]."""
    cp = arrays.cupy()
    numbers = rounded(cp.random.standard_normal(NOISE, dtype="float32"), "bfloat16")
    noise = numbers.view("uint16")  # which CuPy copies

    def array(length: int, heads: int, shift: int) -> Any:
        x = cp.empty(shape.batch * length * heads * shape.head_dim, noise.dtype)
        for begin in range(0, x.size, NOISE - shift):
            part = x[begin : begin + NOISE - shift]
            part[...] = noise[shift : shift + part.size]
        return x.view(numbers.dtype).reshape(shape.batch, length, heads, shape.head_dim)

    return array(shape.q_len, shape.heads, 0), array(shape.kv_len, shape.kv_heads, 999), array(shape.kv_len, shape.kv_heads, 77_777)


def sdpa(backend: str) -> Callable[[Any, Any, Any], Call]:
    """PyTorch's scaled_dot_product_attention through one backend. Of several tokens all see all keys: its masks begin at the first."""

    def prepare(q: Any, k: Any, v: Any) -> Call:
        torch = importlib.import_module("torch")
        chosen = importlib.import_module("torch.nn.attention")
        rows = [to_torch(x).transpose(1, 2) for x in (q, k, v)]

        def call() -> Any:
            with chosen.sdpa_kernel(getattr(chosen.SDPBackend, backend)):
                return torch.nn.functional.scaled_dot_product_attention(*rows, enable_gqa=q.shape[2] != k.shape[2]).transpose(1, 2)

        return call

    return prepare


def flash_4(q: Any, k: Any, v: Any) -> Call:
    """FlashAttention 4, causal from the last key."""
    attention = importlib.import_module("flash_attn.cute").flash_attn_func
    rows = [to_torch(x) for x in (q, k, v)]

    def call() -> Any:
        o = attention(*rows, causal=True)
        return o[0] if isinstance(o, tuple) else o

    return call


_LOADS = r"""
extern "C" __global__ void loads(const uint4* k, const uint4* v, long long count, unsigned* out) {
  unsigned x = 0;
  const long long step = (long long)gridDim.x * blockDim.x;
  #pragma unroll 8
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
    const uint4 a = __ldcs(k + i), b = __ldcs(v + i);
    x ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w;
  }
  if (x == 0x9E3779B9) *out = x;
}
"""


def loads(_: Any, k: Any, v: Any) -> Call:
    """Reads k and v."""
    cp = arrays.cupy()
    kernel, out, count = cp.RawKernel(_LOADS, "loads"), cp.zeros(1, "uint32"), k.nbytes // 16
    blocks = 8 * cp.cuda.Device().attributes["MultiProcessorCount"]
    return lambda: kernel((blocks,), (256,), (k.view("uint8"), v.view("uint8"), cp.int64(count), out))


PEERS: dict[str, tuple[str, Callable[[Any, Any, Any], Call]]] = {
    "cudnn": ("torch", sdpa("CUDNN_ATTENTION")),
    "flash": ("torch", sdpa("FLASH_ATTENTION")),
    "flash-attn 4": ("flash_attn.cute", flash_4),
    "loads": ("cupy", loads),
}
COLUMNS = (*OURS, *PEERS)


def replays(calls: Mapping[str, Call], refused: dict[str, str]) -> dict[str, Call]:
    """The same calls as replays of CUDA graphs that captured them; a call that no graph captures is left out."""
    found: dict[str, Call] = {}
    for name, call in calls.items():
        try:
            found[name] = captured_by_torch(call) if PEERS.get(name, ("",))[0] in ("torch", "flash_attn.cute") else captured(call)
            found[name]()
        except Exception as error:  # a peer's, whatever it is
            refused[f"{name}, replayed"] = f"{type(error).__name__}: {error}"[:100]
    return found


def captured(call: Call) -> Call:
    """A call of CuPy as a replay."""
    stream = arrays.cupy().cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        call()
        graph = stream.end_capture()
    return cast(Call, graph.launch)


def captured_by_torch(call: Call) -> Call:
    """A call of PyTorch as a replay."""
    torch = importlib.import_module("torch")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return cast(Call, graph.replay)


def installed(module: str) -> bool:
    """True if a module can be imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package that it would be in
        return False


def contenders(
    shape: Shape, ours: Mapping[str, Attention], qkv: tuple[Any, Any, Any]
) -> tuple[dict[str, Call], dict[str, str], float | None]:
    """Calls that work, what the others say, and how far o is from that of a peer."""
    cp = arrays.cupy()
    calls: dict[str, Call] = {}
    refused: dict[str, str] = {}
    found: dict[str, Any] = {}
    for name, attn in ours.items():
        out = cp.empty_like(qkv[0])
        calls[name] = lambda attn=attn, out=out: attn(*qkv, out=out)
        found[name] = calls[name]()
    for name, (module, prepare) in PEERS.items():
        try:
            if not installed(module):
                raise ImportError(f"{module} is not installed")
            call = prepare(*qkv)
            found[name] = call()
            cp.cuda.Device().synchronize()
            calls[name] = call
        except Exception as error:  # a peer's, whatever it is
            refused[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:100] if str(error) else ''}"
    return calls, refused, difference(shape, found)


def difference(shape: Shape, found: Mapping[str, Any]) -> float | None:
    """The largest difference between ours and a peer that computes the same, over the largest o; None without such a peer."""
    peers = ["flash-attn 4", *(["cudnn", "flash"] if shape.q_len == 1 else [])]
    peer = next((found[name] for name in peers if name in found), None)
    if peer is None:
        return None
    wanted = peer.float()
    return max(float((to_torch(found[name]).float() - wanted).abs().max() / wanted.abs().max()) for name in OURS)


def row(shape: Shape, ours: Mapping[str, Attention], clock: DeviceClock, repetitions: int) -> dict[str, Any]:
    """The rates of one shape."""
    qkv = drawn(shape)
    calls, refused, off = contenders(shape, ours, qkv)
    taken = measure(calls, clock, repetitions)
    rates = {name: round(shape.rate(timing.ms), 1) for name, timing in taken.items()}
    us = {name: round(1e3 * timing.ms, 2) for name, timing in taken.items()}
    replayed = {name: round(1e3 * timing.ms, 2) for name, timing in measure(replays(calls, refused), clock, repetitions).items()}
    made = {"shape": shape.text, **asdict(shape), "unit": "TFLOP/s" if shape.flops else "GB/s"}
    return {**made, "rates": rates, "us": us, "replayed_us": replayed, "off": off, "refused": refused}


def line(made: Mapping[str, Any]) -> str:
    """A row for people."""
    cells = [f"{made['rates'][name]:>13.0f}" if name in made["rates"] else f"{'':>13}" for name in COLUMNS]
    off = f"off {made['off']:.1e}" if made["off"] is not None else ""
    replayed = ", ".join(f"{name} {us:.1f}" for name, us in made["replayed_us"].items())
    return f"{made['shape']:30}{''.join(cells)} {made['unit']:8} {made['us']['flashgen']:9.1f} us  {off}\n    replays, us: {replayed}"


def programs(shapes: list[Shape], arch: Arch, card: str | None) -> list[Program]:
    """Returns what ours runs, and the plan that each spec is compiled with at first."""
    found = []
    for shape, split in product(shapes, OURS.values()):
        choice = Choice(spec_of(shape, split))
        length, asked_for = choice.kind(arch, shape.sizes)
        found += [choice.plan(arch), choice.plan(arch, 0, length, card, asked_for)]
    return list({program.digest: program for program in found}.values())


def compiled(shapes: list[Shape]) -> dict[tuple[int, str], Attention]:
    """Ours, by head dim and kind of split; kernels are compiled before, side by side, and kept in the cache."""
    target = device.current()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda program: cache.binary(program, render(program)), programs(shapes, target.arch, target.name)))
    one = {shape.head_dim: shape for shape in shapes}
    return {(d, name): Attention(spec_of(shape, split)) for d, shape in one.items() for name, split in OURS.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer shapes, fewer repetitions")
    a = parser.parse_args()
    shapes = [*TOKEN, *TOKENS[3:4], *CHUNKS] if a.quick else [*TOKEN, *OTHERS, *TOKENS, *CHUNKS]
    clock, found = DeviceClock(), environment()
    ours = compiled(shapes)
    print(f"{'':30}{''.join(f'{name:>13}' for name in COLUMNS)}")
    rows = []
    for shape in shapes:
        rows.append(row(shape, {name: ours[shape.head_dim, name] for name in OURS}, clock, 3 if a.quick else 9))
        arrays.cupy().get_default_memory_pool().free_all_blocks()
        print(line(rows[-1]), flush=True)
    for name in dict.fromkeys(name for made in rows for name in made["refused"]):
        print(f"{name}: {'; '.join(sorted({made['refused'][name] for made in rows if name in made['refused']}))}")
    if not a.quick:
        path = RESULTS / f"decode_{card_name(found)}.json"
        path.write_text(json.dumps({**found, "suite": "decode", "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
