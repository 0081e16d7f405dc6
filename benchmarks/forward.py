"""Forward speed beside PyTorch's cuDNN and flash backends: 16k tokens in all, hidden size 2048, as in the FlashAttention-3 paper.

    python benchmarks/forward.py                          # every cell, written to benchmarks/results/<card>.json
    python benchmarks/forward.py --head-dims 128 --lengths 16384 --dtypes bfloat16 float16

Each timing is eight launches back to back between two events, so host time does not count; implementations take turns, the median
of the repetitions stands. Every implementation is checked against float64 first. Needs PyTorch and a GPU.
"""

import argparse
import json
import math
import statistics
import subprocess
from collections.abc import Callable
from importlib.metadata import version
from itertools import product
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import flashgen

TOKENS, HIDDEN, LAUNCHES = 16384, 2048, 8
Run = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def torch_run(backend: SDPBackend, causal: bool) -> Run:
    """PyTorch's scaled_dot_product_attention through one backend, on [B, S, H, D]."""

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)

    def within(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(backend):
            return run(q, k, v)

    return within


def implementations(head_dim: int, dtype: str, causal: bool) -> dict[str, Run]:
    """What is measured, by name."""
    spec = {"head_dim": head_dim, "dtype": dtype, "mask": "causal" if causal else "full"}
    return {
        "flashgen": flashgen.compile(spec),
        "flashgen mma.sync": flashgen.compile(spec, arch="sm_90"),  # the kernel of every other arch, and of arrays that TMA cannot address
        "cudnn": torch_run(SDPBackend.CUDNN_ATTENTION, causal),
        "flash": torch_run(SDPBackend.FLASH_ATTENTION, causal),
    }


def random(batch: int, seqlen: int, head_dim: int, dtype: str) -> list[torch.Tensor]:
    """Fresh q, k, v: [B, S, H, D]."""
    return [torch.randn(batch, seqlen, HIDDEN // head_dim, head_dim, device="cuda").to(getattr(torch, dtype)) for _ in range(3)]


def check(name: str, run: Run, head_dim: int, dtype: str, causal: bool) -> None:
    """Raises where an implementation is off by more than twice what rounding p and o to the dtype costs."""
    q, k, v = (x[:, :, :2] for x in random(1, 1023, head_dim, dtype))
    s = torch.einsum("bqhd,bkhd->bhqk", q.double(), k.double()) / math.sqrt(head_dim)
    if causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool, device="cuda").triu(1), -math.inf)
    want = torch.einsum("bhqk,bkhd->bqhd", s.softmax(-1), v.double())
    plain = torch.einsum("bhqk,bkhd->bqhd", s.float().softmax(-1).to(q.dtype).double(), v.double()).to(q.dtype)
    error, allowed = ((x.double() - want).norm() / want.norm() for x in (run(q, k, v), plain))
    if not error <= 2 * allowed:
        raise SystemExit(f"{name}, head dim {head_dim}, {dtype}, causal {causal}: relative error {error:.1e}, {2 * allowed:.1e} allowed")


def measure(runs: dict[str, Run], inputs: list[torch.Tensor], repetitions: int) -> dict[str, float]:
    """Milliseconds a launch, by implementation."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for repetition in range(repetitions + 2):
        for name, run in runs.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            for _ in range(LAUNCHES):
                run(*inputs)
            end.record()
            end.synchronize()
            if repetition >= 2:
                times[name].append(start.elapsed_time(end) / LAUNCHES)
    return {name: statistics.median(t) for name, t in times.items()}


def row(implementation: str, ms: float, head_dim: int, causal: bool, seqlen: int, dtype: str) -> dict[str, object]:
    """One cell of the results; causal counts half of the operations."""
    operations = 4 * TOKENS * seqlen * HIDDEN / (2 if causal else 1)
    shape = {
        "head_dim": head_dim,
        "causal": causal,
        "seqlen": seqlen,
        "batch": TOKENS // seqlen,
        "heads": HIDDEN // head_dim,
        "dtype": dtype,
    }
    speed = {"implementation": implementation, "ms": round(ms, 4), "tflops": round(operations / ms / 1e9, 1)}
    return {"suite": "grid", "mode": "forward", **shape, **speed}


def environment() -> dict[str, object]:
    """Card, driver, versions, commit."""
    driver = output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").split("\n")[0]
    versions = {"torch": torch.__version__, "cudnn": str(torch.backends.cudnn.version()), "cupy": version("cupy-cuda13x")}
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": driver,
        "versions": versions,
        "commit": output_of("git", "rev-parse", "--short", "HEAD"),
    }


def output_of(*command: str) -> str:
    """What a command prints; nothing when it fails."""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--head-dims", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16"])
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--commit", help="where the checkout has no git")
    a = parser.parse_args()
    found = environment()
    found["commit"] = a.commit or found["commit"]
    rows = []
    for dtype, head_dim, causal in product(a.dtypes, a.head_dims, (False, True)):
        runs = implementations(head_dim, dtype, causal)
        for name, run in runs.items():
            check(name, run, head_dim, dtype, causal)
        for seqlen in a.lengths:
            times = measure(runs, random(TOKENS // seqlen, seqlen, head_dim, dtype), a.repetitions)
            cells = [row(name, ms, head_dim, causal, seqlen, dtype) for name, ms in times.items()]
            speeds = "   ".join(f"{cell['implementation']} {cell['tflops']:5.0f}" for cell in cells)
            print(f"{dtype} {head_dim:3} {'causal' if causal else 'full  '} {seqlen:5}  {speeds}", flush=True)
            rows += cells
    output = a.output or Path(__file__).parent / "results" / f"{str(found['gpu']).replace(' ', '_')}.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({**found, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
