"""Times what the host spends: compiling a spec with an empty cache and a full one, and each call.

    python benchmarks/host.py                                           # causal, on the current GPU; prints JSON
    python benchmarks/host.py --spec specs/alibi.yaml --arch sm_90a     # compile times alone need no GPU

A call's overhead is the time of 400 calls that nothing waits for, over 400, on arrays so small that the GPU keeps up; the best of ten.
"a key more each time" is a decoding step: one query, keys and values the first of memory for more, lengths that no call had before.
"launcher" is what `prepare` gives, with `out`; "a replay" is that of a CUDA graph which captured such a call.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import flashgen
from flashgen.runtime import device, gpu, nvrtc

CALLS = 400


def seconds(run: Callable[[], Any]) -> float:
    """The seconds that a call takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def compile_times(spec: str, arch: str | None) -> dict[str, float]:
    """Milliseconds. Imports are not counted, and neither is loading the compiler."""
    flashgen.compile({"dtype": "bfloat16", "head_dim": 64}, arch="host")
    nvrtc.compiler()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FLASHGEN_CACHE_DIR"] = folder
        cold = seconds(lambda: flashgen.compile(spec, arch))
        gpu._kernel.cache_clear()  # as in a process that finds the cubin on disk
        warm = seconds(lambda: flashgen.compile(spec, arch))
    return {"cold_ms": 1e3 * cold, "warm_ms": 1e3 * warm}


def call_times(spec: str) -> dict[str, float]:
    """Microseconds a call, on [1, 128, 1, D]."""
    import cupy

    attn = flashgen.compile(spec)
    d, dtype = attn.spec.head_dim, attn.spec.element.numpy
    q, k, v = (cupy.zeros((1, 128, 1, n), "uint16").view(dtype) for n in (d.qk, d.qk, d.v))
    tensors = {t.name: cupy.zeros([n if isinstance(n, int) else 1 for n in t.shape], t.dtype) for t in attn.spec.tensors}
    out = attn(q, k, v, **tensors)
    calls = {"cupy": lambda: attn(q, k, v, **tensors), "cupy, out given": lambda: attn(q, k, v, out=out, **tensors)}
    if attn.spec.mask == "causal" and not tensors:
        calls["cupy, attention()"] = lambda: flashgen.attention(q, k, v)
    if not tensors:
        import torch

        x, y, z = (torch.zeros(1, 128, 1, n, dtype=getattr(torch, attn.spec.dtype), device="cuda") for n in (d.qk, d.qk, d.v))
        calls["torch"] = lambda: attn(x, y, z)
    times = {name: min(_overhead(call, cupy) for _ in range(10)) for name, call in calls.items()}
    return times | ({} if tensors else decoding_times(attn.spec, cupy))


def decoding_times(spec: flashgen.Spec, cupy: Any) -> dict[str, float]:
    """Microseconds a call of one query on keys and values of one head of eight, in shares of keys and in one piece."""
    d, dtype, most = spec.head_dim, spec.element.numpy, 16384
    q, o, k, v = (cupy.zeros((1, *shape), "uint16").view(dtype) for shape in ((1, 8, d.qk), (1, 8, d.v), (most, 1, d.qk), (most, 1, d.v)))
    found, stream = {}, cupy.cuda.Stream(non_blocking=True)
    for name, split in {"keys in shares": None, "split: 1": 1}.items():
        attn = flashgen.compile(flashgen.Spec(dtype=spec.dtype, head_dim=spec.head_dim, split=split))
        run = attn.prepare(max_batch=1, max_q_len=1, max_kv_len=most, heads=8, kv_heads=1)
        for how, call in {"": attn, ", out given": partial(attn, out=o), ", launcher": partial(run, out=o)}.items():
            lengths = iter(range(4100, most))
            found[f"one query, {name}{how}"] = min(_overhead(partial(call, q, k, v), cupy) for _ in range(10))
            found[f"one query, {name}{how}, a key more each time"] = min(_growing(call, (q, k, v), lengths, cupy) for _ in range(10))
        with stream:
            stream.begin_capture()
            run(q, k, v, out=o)
            graph = stream.end_capture()
        found[f"one query, {name}, a replay"] = min(_overhead(partial(graph.launch, stream), cupy) for _ in range(10))
    return found


def _growing(call: Callable[..., Any], qkv: tuple[Any, Any, Any], lengths: Iterator[int], cupy: Any) -> float:
    """Times calls on caches that grow."""
    q, k, v = qkv
    steps = [(k[:, :n], v[:, :n]) for n, _ in zip(lengths, range(CALLS), strict=False)]
    cupy.cuda.Device().synchronize()
    start = time.perf_counter()
    for keys, values in steps:
        call(q, keys, values)
    spent = 1e6 * (time.perf_counter() - start) / CALLS
    cupy.cuda.Device().synchronize()
    return spent


def _overhead(call: Callable[[], Any], cupy: Any) -> float:
    call()
    cupy.cuda.Device().synchronize()
    start = time.perf_counter()
    for _ in range(CALLS):
        call()  # its result goes back to the pool, as in a model that goes on with the next layer
    spent = time.perf_counter() - start
    cupy.cuda.Device().synchronize()
    return 1e6 * spent / CALLS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spec", default="specs/causal.yaml")
    parser.add_argument("--arch")
    arguments = parser.parse_args()
    result: dict[str, Any] = {
        "spec": arguments.spec,
        "compiler": nvrtc.compiler(),
        "compile": compile_times(arguments.spec, arguments.arch),
    }
    if device.missing() is None:
        result |= {"card": device.current().name, "call_us": call_times(arguments.spec)}
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
