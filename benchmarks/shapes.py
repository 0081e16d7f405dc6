"""The forward on the shapes of published models, in bfloat16: TFLOP/s beside cuDNN, and beside FlexAttention where there is a window.

    python benchmarks/shapes.py            # all shapes, written to benchmarks/results/shapes_<card>.json and .png
    python benchmarks/shapes.py --quick    # the first two lengths of each model, nothing written
    python benchmarks/shapes.py --compile  # the plan of each shape and what the compiler says of it: needs NVRTC, no GPU

The pairs of a query and a key that the mask shows count, half of all for causal. `off` is the largest difference between flashgen's o and
the peer's, over the largest o. Needs a GPU and PyTorch.
"""

import argparse
import importlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flashgen.api import Attention
from flashgen.arch import Arch, by_name
from flashgen.bench import DeviceClock
from flashgen.bench.figure import figure
from flashgen.bench.results import card_name, environment, save_json
from flashgen.bench.timing import measure
from flashgen.plan import Program
from flashgen.plan.geometry import Sizes
from flashgen.render import render
from flashgen.runtime import cache, device, nvrtc
from flashgen.runtime.choice import Choice
from flashgen.spec import Spec

RESULTS = Path(__file__).parent / "results"
OURS, CUDNN, FLEX = "flashgen", "cudnn", "flex"
REPETITIONS = 5
LENGTHS = (2048, 4096, 8192, 16384, 32768)
Call = Callable[[], Any]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of a call. `window`: keys that a query sees at most, 0 for all; `causal`: none behind it."""

    model: str
    batch: int
    q_len: int
    kv_len: int
    heads: tuple[int, int]  # of q, of k and v
    head_dim: tuple[int, int]  # of q and k, of v
    causal: bool
    window: int = 0

    @property
    def mask(self) -> str:
        """The mask as a spec says it."""
        return f"causal & window({self.window - 1}, 0)" if self.window else "causal" if self.causal else "full"

    @property
    def spec(self) -> Spec:
        """The spec of the shape."""
        qk, v = self.head_dim
        return Spec(dtype="bfloat16", head_dim={"qk": qk, "v": v}, mask=self.mask)

    @property
    def sizes(self) -> Sizes:
        """The sizes of a call."""
        return Sizes(batch=self.batch, q_len=self.q_len, kv_len=self.kv_len, heads=self.heads[0], kv_heads=self.heads[1])

    @property
    def flops(self) -> float:
        """Those of both products over the pairs that the mask shows."""
        n, w = self.q_len, self.window
        pairs = n * w - w * (w - 1) / 2 if w else n * self.kv_len / (2 if self.causal else 1)
        return 2.0 * self.batch * self.heads[0] * pairs * sum(self.head_dim)

    @property
    def text(self) -> str:
        """The shape in a line."""
        heads, dims = (f"{a}/{b}" if a != b else str(a) for a, b in (self.heads, self.head_dim))
        return f"{self.model:12} {self.mask:22} B{self.batch} H{heads} D{dims} q{self.q_len} k{self.kv_len}"


def model(name: str, batch: int, heads: tuple[int, int], dims: tuple[int, int], *masks: bool, **more: Any) -> list[Shape]:
    """The shapes of a model: each mask, causal or not, at each of its lengths; `keys` where they are not as many as queries."""
    lengths, keys, window = more.get("lengths", LENGTHS), more.get("keys", 0), more.get("window", 0)
    known = {"model": name, "batch": batch, "heads": heads, "head_dim": dims, "window": window}
    return [Shape(**known, causal=causal, q_len=n, kv_len=keys or n) for causal in masks for n in lengths]


MODELS = [
    model("Llama 3.1", 2, (64, 8), (128, 128), True, False),
    model("DeepSeek V3", 2, (128, 128), (192, 128), True, False),
    model("Qwen 3.5", 1, (32, 2), (256, 256), True),
    model("Wan 2.2", 1, (40, 40), (128, 128), False, lengths=(2100, 7800, 17160, 32760, 75600)),
    model("LTX 2", 1, (32, 32), (128, 128), False, lengths=(6144, 13376, 17556, 30240, 37632)),
    model("video DiT", 1, (9, 9), (128, 128), False, lengths=(985, 1024, 2048, 4096, 8192), keys=62208),
    model("gpt-oss", 2, (64, 8), (64, 64), True, lengths=(4096, 16384), window=128),
    model("Gemma 3", 2, (16, 8), (256, 256), True, lengths=(4096, 16384), window=1024),
    model("DeepSeek V4", 2, (64, 1), (512, 512), True, lengths=(4096, 16384), window=128),
]


def drawn(shape: Shape) -> tuple[Any, Any, Any]:
    """q, k, v [B, S, H, D] of PyTorch, normal."""
    torch = importlib.import_module("torch")
    (heads, kv_heads), (qk, v) = shape.heads, shape.head_dim
    sizes = ((shape.q_len, heads, qk), (shape.kv_len, kv_heads, qk), (shape.kv_len, kv_heads, v))
    q, k, v = (torch.randn((shape.batch, *size), device="cuda", dtype=torch.bfloat16) for size in sizes)
    return q, k, v


def cudnn(shape: Shape, *qkv: Any) -> Call:
    """PyTorch's scaled_dot_product_attention through cuDNN."""
    attention = importlib.import_module("torch.nn.attention")
    sdpa = importlib.import_module("torch").nn.functional.scaled_dot_product_attention
    rows, grouped = [x.transpose(1, 2) for x in qkv], shape.heads[0] != shape.heads[1]

    def call() -> Any:
        with attention.sdpa_kernel(attention.SDPBackend.CUDNN_ATTENTION):
            return sdpa(*rows, is_causal=shape.causal, enable_gqa=grouped).transpose(1, 2)

    return call


def flex(shape: Shape, *qkv: Any) -> Call:
    """FlexAttention with a window, its block mask built before."""
    module = importlib.import_module("torch.nn.attention.flex_attention")
    compiled = importlib.import_module("torch").compile(module.flex_attention)
    rows, grouped = [x.transpose(1, 2) for x in qkv], shape.heads[0] != shape.heads[1]
    seen = module.create_block_mask(
        lambda _b, _h, q, k: (q >= k) & (q - k < shape.window), None, None, shape.q_len, shape.kv_len, device="cuda"
    )
    return lambda: compiled(*rows, block_mask=seen, enable_gqa=grouped).transpose(1, 2)


def contenders(shape: Shape, attention: Attention) -> tuple[dict[str, Call], str, float | None]:
    """The calls that work, what the peer says if its does not, and how far o is from the peer's."""
    qkv = drawn(shape)
    calls: dict[str, Call] = {OURS: lambda: attention(*qkv)}
    name, prepare = (FLEX, flex) if shape.window else (CUDNN, cudnn)
    try:
        call = prepare(shape, *qkv)
        wanted = call().float()
    except Exception as error:  # a peer's, whatever it is
        return calls, f"{name}: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:100]}", None
    off = float((calls[OURS]().float() - wanted).abs().max() / wanted.abs().max())
    return {**calls, name: call}, "", off


def row(shape: Shape, attention: Attention, clock: DeviceClock) -> dict[str, Any]:
    """The speeds of one shape."""
    calls, refused, off = contenders(shape, attention)
    taken = measure(calls, clock, REPETITIONS)
    speeds = {name: round(shape.flops / timing.ms / 1e9, 1) for name, timing in taken.items()}
    ms = {name: round(timing.ms, 4) for name, timing in taken.items()}
    return {**asdict(shape), "mask": shape.mask, "tflops": speeds, "ms": ms, "off": off, "refused": refused}


def line(shape: Shape, made: dict[str, Any]) -> str:
    """A row for people."""
    speeds = made["tflops"]
    cells = "  ".join(f"{name} {x:4.0f}" for name, x in speeds.items())
    beside = made["refused"] or f"{relative(speeds)}  off {made['off']:.1e}"
    return f"{shape.text:75} {cells}  {beside}"


def relative(speeds: dict[str, float]) -> str:
    """flashgen's speed relative to the peer's; nothing where there is none."""
    others = [x for name, x in speeds.items() if name != OURS]
    return f"{speeds[OURS] / max(others):.2f}" if others else ""


def programs(shapes: list[Shape], arch: Arch, card: str | None = None) -> dict[str, tuple[Shape, Program]]:
    """The programs that flashgen runs, by digest, each with the first of its shapes."""
    found: dict[str, tuple[Shape, Program]] = {}
    for shape in shapes:
        choice = Choice(shape.spec)
        length, asked_for = choice.kind(arch, shape.sizes)
        for program in (choice.plan(arch), choice.plan(arch, 0, length, card, asked_for)):
            found.setdefault(program.digest, (shape, program))
    return found


def compiled(shapes: list[Shape], arch: Arch) -> Iterator[str]:
    """A line a kernel, without a GPU."""
    for shape, program in programs(shapes, arch).values():
        binary = nvrtc.compile(render(program))
        yield f"{shape.text:75} {program.skeleton} {program.main.tile.text}  {binary.spill_bytes} bytes spilled  {binary.seconds:.1f} s"


def prepare(shapes: list[Shape]) -> dict[str, Attention]:
    """flashgen's attention, by model and mask; kernels are compiled before, side by side, and kept in the cache."""
    here = device.current()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda one: cache.binary(one[1], render(one[1])), programs(shapes, here.arch, here.name).values()))
    return {f"{one.model} {one.mask}": Attention(one.spec) for one in shapes}


def save_picture(results: dict[str, Any], path: Path) -> None:
    """TFLOP/s by length, a panel a model and mask; over the bars of flashgen its speed relative to the peer's. Raises BackendError."""
    panels: dict[str, list[dict[str, Any]]] = {}
    for made in results["rows"]:
        panels.setdefault(f"{made['model']}, {made['mask']}", []).append(made)
    columns = 4
    drawn = figure(4.2 * columns, 3 * -(-len(panels) // columns) + 0.6)
    colors = {OURS: "#1f78b4", CUDNN: "#b8c2cc", FLEX: "#e0a96d"}
    grid = drawn.subplots(-(-len(panels) // columns), columns, squeeze=False)
    for axes, (title, rows) in zip(grid.flat, panels.items(), strict=False):
        for i, made in enumerate(rows):
            for j, (name, speed) in enumerate(made["tflops"].items()):
                axes.bar(i + 0.4 * j - 0.2, speed, 0.4, color=colors[name], label=name if i == 0 else None)
            axes.annotate(relative(made["tflops"]), (i - 0.2, made["tflops"][OURS]), ha="center", va="bottom", fontsize=8)
        axes.set_xticks(range(len(rows)), [str(made["q_len"]) for made in rows])
        axes.margins(y=0.12)
        axes.set_title(title, fontsize=10)
        axes.set(xlabel="queries", ylabel="TFLOP/s")
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    handles = {name: bar for axes in grid.flat for bar, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    drawn.legend(handles.values(), handles, loc="outside lower center", ncols=len(handles), frameon=False)
    drawn.suptitle(f"{results['gpu']}, forward, bfloat16")
    drawn.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two lengths of each model, nothing written")
    parser.add_argument("--compile", action="store_true", help="plans and compiler's reports, without a GPU")
    parser.add_argument("--arch", default="sm_90a", help="of --compile")
    a = parser.parse_args()
    shapes = [one for shapes in MODELS for one in (shapes[:2] if a.quick else shapes)]
    if a.compile:
        for text in compiled(shapes, by_name(a.arch)):
            print(text, flush=True)
        return
    found, clock, ours, rows = environment(), DeviceClock(), prepare(shapes), []
    for one in shapes:
        rows.append(row(one, ours[f"{one.model} {one.mask}"], clock))
        print(line(one, rows[-1]), flush=True)
    if not a.quick:
        results, path = {**found, "suite": "shapes", "rows": rows}, RESULTS / f"shapes_{card_name(found)}.json"
        save_json(results, path)
        save_picture(results, path.with_suffix(".png"))


if __name__ == "__main__":
    main()
