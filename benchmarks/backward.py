"""The time of the backward beside cuDNN (by PyTorch) and, where it is installed, FlashAttention-4: bfloat16, 16k tokens, hidden size 2048.

    python benchmarks/backward.py            # head dims 64, 128, 256, lengths 512 to 16k, full and causal, written to
                                             # benchmarks/results/backward_<card>.json; needs a GPU, CuPy and PyTorch
    python benchmarks/backward.py --quick    # head dims 64 and 128 at 1k, 4k and 16k beside cuDNN alone, under a minute
    python benchmarks/backward.py --compile  # the plans, their registers and spills: needs NVRTC, no GPU

TFLOP/s of 10 S^2 D H B (half of it if causal), all kernels of a backward, medians of runs in turns. `off`: the largest difference of dq, dk
and dv from cuDNN's, relative to the norm of those; both round p and ds to bfloat16.
"""

import argparse
import importlib
import importlib.util
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

from compiling import Asked, compiled

from flashgen.bench import DeviceClock
from flashgen.bench.results import card_name, environment, save_json
from flashgen.bench.timing import measure
from flashgen.errors import FlashgenError
from flashgen.plan.backward import plan_backward
from flashgen.render import render
from flashgen.runtime import device, nvrtc
from flashgen.spec import Spec

RESULTS = Path(__file__).parent / "results"
TOKENS, HIDDEN = 16384, 2048
LENGTHS, QUICK_LENGTHS = (512, 1024, 2048, 4096, 8192, 16384), (1024, 4096, 16384)
HEAD_DIMS, QUICK_HEAD_DIMS = (64, 128, 256), (64, 128)
OURS = "flashgen"

Cell = tuple[int, int, bool]  # head dim, length, causal
Gradients = Callable[[], Any]  # -> dq, dk, dv


def spec_of(head_dim: int, causal: bool) -> Spec:
    """The spec of a cell of the grid."""
    return Spec(head_dim=head_dim, dtype="bfloat16", mask="causal" if causal else "full", backward=True)


def flops(cell: Cell) -> float:
    """The floating-point operations of a cell: five products over the pairs that the mask shows."""
    head_dim, length, causal = cell
    return 10.0 * length * length * head_dim * (HIDDEN // head_dim) * (TOKENS // length) / (2 if causal else 1)


def ours(cell: Cell, q: Any, k: Any, v: Any, do: Any) -> Gradients:
    """flashgen's, from what its forward gives."""
    flashgen = importlib.import_module("flashgen")
    attn = flashgen.compile(spec_of(cell[0], cell[2]))
    o, lse = attn(q, k, v)
    return lambda: attn.backward(do, q, k, v, o, lse)


def by_autograd(forward: Callable[[Any, Any, Any], Any], q: Any, k: Any, v: Any, do: Any) -> Gradients:
    """PyTorch's, of a forward that it differentiates."""
    torch = importlib.import_module("torch")
    leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    o = forward(*leaves)
    return lambda: torch.autograd.grad(o, leaves, do, retain_graph=True)


def cudnn(cell: Cell, q: Any, k: Any, v: Any, do: Any) -> Gradients:
    """Gradients by PyTorch's attention with cuDNN."""
    attention = importlib.import_module("torch.nn.attention")
    sdpa = importlib.import_module("torch").nn.functional.scaled_dot_product_attention

    def forward(*rows: Any) -> Any:
        with attention.sdpa_kernel(attention.SDPBackend.CUDNN_ATTENTION):
            return sdpa(*(x.transpose(1, 2) for x in rows), is_causal=cell[2]).transpose(1, 2)

    return by_autograd(forward, q, k, v, do)


def flash_attn_4(cell: Cell, q: Any, k: Any, v: Any, do: Any) -> Gradients:
    """Gradients by FlashAttention 4."""
    attention = importlib.import_module("flash_attn.cute").flash_attn_func

    def forward(*rows: Any) -> Any:
        o = attention(*rows, causal=cell[2])
        return o[0] if isinstance(o, tuple) else o

    return by_autograd(forward, q, k, v, do)


def contenders(quick: bool) -> dict[str, Callable[..., Gradients]]:
    """The implementations to time, by name; FlashAttention-4 is one only where it is installed."""
    found = {OURS: ours, "cudnn": cudnn}
    if not quick and importlib.util.find_spec("flash_attn") and importlib.util.find_spec("flash_attn.cute"):
        found["flash-attn 4"] = flash_attn_4
    return found


def measured(cell: Cell, chosen: dict[str, Callable[..., Gradients]], repetitions: int) -> tuple[list[dict[str, Any]], str]:
    """The rows of a results file, and a line of the table; a contender that refuses a cell is left out, with its reason."""
    torch = importlib.import_module("torch")
    head_dim, length, causal = cell
    shape = (TOKENS // length, length, HIDDEN // head_dim, head_dim)
    arrays = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    runs, refused = dict[str, Gradients](), ""
    for name, prepare in chosen.items():
        try:
            run = prepare(cell, *arrays)
            run()
            runs[name] = run
        except (FlashgenError, RuntimeError, ImportError, TypeError) as error:
            refused += f"  {name}: {str(error).splitlines()[0][:80]}"
    taken = {name: timing.ms for name, timing in measure(runs, DeviceClock(), repetitions).items()}
    speeds = {name: flops(cell) / ms / 1e9 for name, ms in taken.items()}
    known = {"suite": "grid", "mode": "backward", "head_dim": head_dim, "causal": causal, "seqlen": length}
    known |= {"batch": shape[0], "heads": shape[2], "dtype": "bfloat16"}
    rows = [known | {"implementation": name, "ms": round(ms, 4), "tflops": round(speeds[name], 1)} for name, ms in taken.items()]
    others = [speed for name, speed in speeds.items() if name != OURS]
    cells = [f"{name} {speed:4.0f}" for name, speed in speeds.items()]
    ratio = f"  {speeds[OURS] / max(others):.2f} of the fastest" if others and OURS in speeds else ""
    off = f"  off {_off(runs[OURS](), runs['cudnn']()):.1e}" if {OURS, "cudnn"} <= runs.keys() else ""
    return rows, f"{head_dim:3} {'causal' if causal else 'full':6} {length:5}  {'  '.join(cells)}{ratio}{off}{refused}"


def _off(found: Any, other: Any) -> float:
    pairs = [(x.float(), y.float()) for x, y in zip(found, other, strict=True)]
    return max(float((x - y).norm() / y.norm()) for x, y in pairs)


def reports(arch: str) -> Iterator[str]:
    """The plan of each head dim and mask, and what the compiler says of it."""
    for head_dim, causal in product(HEAD_DIMS, (False, True)):
        program = plan_backward(spec_of(head_dim, causal), arch)
        binary = nvrtc.compile(render(program))
        kernel = program.main
        tile = f"{kernel.tile.text}, {kernel.smem.bytes} bytes of shared memory"
        name = "causal" if causal else "full"
        yield f"{head_dim:3} {name:6}  {program.skeleton}  {tile}  {binary.spill_bytes} bytes spilled  {binary.seconds:.1f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer cells, beside cuDNN alone")
    parser.add_argument("--compile", action="store_true", help="plans and compiler's reports, without a GPU")
    parser.add_argument("--arch", default="sm_90a", help="of --compile")
    parser.add_argument("--head-dims", type=int, nargs="+")
    parser.add_argument("--lengths", type=int, nargs="+")
    a = parser.parse_args()
    if a.compile:
        for line in reports(a.arch):
            print(line, flush=True)
        return
    chosen = contenders(a.quick)
    head_dims = a.head_dims or (QUICK_HEAD_DIMS if a.quick else HEAD_DIMS)
    lengths = a.lengths or (QUICK_LENGTHS if a.quick else LENGTHS)
    found, rows = environment(), []
    compiled(Asked(spec_of(d, causal), device.current().arch.name, n) for d, causal, n in product(head_dims, (False, True), lengths))
    for head_dim, causal, length in product(head_dims, (False, True), lengths):
        more, line = measured((head_dim, length, causal), chosen, 5 if a.quick else 7)
        rows += more
        print(line, flush=True)
    if not (a.quick or a.head_dims or a.lengths):
        save_json({**found, "rows": rows}, RESULTS / f"backward_{card_name(found)}.json")


if __name__ == "__main__":
    main()
