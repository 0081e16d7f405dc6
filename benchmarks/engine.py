"""Times a layer of an inference engine in flashgen's plug-in of vLLM: new keys into pages, and attention; vLLM is not needed.

    python benchmarks/engine.py    # needs a GPU and PyTorch

bfloat16, 32 query heads, 8 for keys and values, head dim 128, pages of 16 keys in random order, in vLLM's cache. `host`: microseconds of a
call that nothing waits for, the best of ten times 200 calls; `device`: microseconds of a layer in a CUDA graph of 20, medians of seven.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from flashgen.vllm.layer import Batch, Layer, attend, keep

HEADS, KV_HEADS, HEAD_DIM, PAGE, LAYERS, CALLS, TURNS = 32, 8, 128, 16, 20, 200, 7
STEPS = {  # new tokens of each sequence, and its keys
    "64 sequences, a token each, 4,096 keys": [(1, 4096)] * 64,
    "1 sequence, a token, 32,768 keys": [(1, 32768)],
    "a chunk of 2,048 tokens": [(2048, 8192)],
    "a chunk of 2,048, and 63 tokens": [(2048, 8192), *[(1, 4096)] * 63],
}


def batch(sequences: list[tuple[int, int]]) -> Batch:
    """A batch of sequences, each of so many new tokens and keys, as an engine hands it to its layers."""

    def on_gpu(numbers: Any) -> torch.Tensor:
        return torch.as_tensor(numbers, dtype=torch.int32, device="cuda")

    new, keys = zip(*sequences, strict=True)
    columns = -(-max(keys) // PAGE)
    table = torch.randperm(len(keys) * columns).view(len(keys), columns)
    starts = torch.tensor([0, *new]).cumsum(0)
    return Batch(cu_seqlens_q=on_gpu(starts), kv_lens=on_gpu(keys), block_table=on_gpu(table), tokens=sum(new), longest=max(new))


def host(run: Callable[[], None]) -> float:
    """Microseconds of the host for a call of every layer."""
    best = float("inf")
    for _ in range(10):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(CALLS):
            run()
        best = min(best, time.perf_counter() - start)
    return best / CALLS * 1e6


def device(run: Callable[[], None]) -> float:
    """Microseconds of the device for a call of every layer, captured in a graph."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAYERS):
            run()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(TURNS + 1):
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / LAYERS * 1e3)
    return statistics.median(times[1:])


def main() -> None:
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    layer = Layer(head_dim=HEAD_DIM, scale=HEAD_DIM**-0.5)
    for name, sequences in STEPS.items():
        step = batch(sequences)
        q, k, v = (torch.randn(step.tokens, n, HEAD_DIM, dtype=torch.bfloat16, device="cuda") for n in (HEADS, KV_HEADS, KV_HEADS))
        cache = torch.randn(step.block_table.numel(), KV_HEADS, PAGE, 2 * HEAD_DIM, dtype=torch.bfloat16, device="cuda")
        out = torch.empty_like(q)
        runs: dict[str, Callable[[], None]] = {
            "keep": lambda: keep(layer, cache, step, k, v),  # noqa: B023, called before the next
            "attend": lambda: attend(layer, q, cache, step, out, {}),  # noqa: B023
        }
        for what, run in runs.items():
            run()
            print(f"{name:40} {what:7} host {host(run):6.1f} us  device {device(run):8.1f} us", flush=True)


if __name__ == "__main__":
    main()
