"""Helps all GPU tests: arrays on the GPU, poisoned outputs, the error rule."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from flashgen.spec import Spec
from tests.plan import agreement

BF16 = Spec(head_dim=64, dtype="bfloat16", mask="causal", outputs=["o", "lse"])


def judge(spec: Spec, got: Any, q: Any, k: Any, v: Any, **values: Any) -> None:
    """The error rule: at most twice the error of plain attention in the same dtype, and a bit."""
    agreement.judge(spec, dict(zip(("o", "lse"), got, strict=True)), q, k, v, **values)


def compiled(make: Callable[[Any], Any], what: Iterable[Any]) -> list[Any]:
    """`make` of each, on this process's share of the cores: the compiler leaves the lock alone."""
    share = (os.cpu_count() or 1) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    with ThreadPoolExecutor(max(1, share)) as pool:
        return list(pool.map(make, what))


def cupy() -> Any:
    return pytest.importorskip("cupy")


def up(*xs: Any) -> list[Any]:
    """NumPy arrays on the current GPU, by CuPy."""
    return [cupy().asarray(x) for x in xs]


def down(xs: Any) -> list[Any]:
    """Back to NumPy; 16-bit floats as bits, since CuPy has few kernels for bfloat16."""
    return [x.view(np.uint16).get().view(x.dtype) if x.itemsize == 2 else x.get() for x in xs]


def replayed(backward: Callable[..., Any], contents: Sequence[Mapping[str, Any]]) -> Iterator[list[Any]]:
    """The gradients of a captured call, replayed on each of these contents of its arrays; sums, counters and turns begin anew each time."""
    cp = cupy()
    sent, stream = {name: up(x)[0] for name, x in contents[0].items()}, cp.cuda.Stream(non_blocking=True)
    with stream:
        backward(**sent)  # compiled and loaded before, and the pool has its memory
        stream.synchronize()
        stream.begin_capture()
        results = backward(**sent)
        graph = stream.end_capture()
    for arrays in contents:
        for name, x in sent.items():
            x.view("uint8")[...] = up(arrays[name])[0].view("uint8")
        cp.cuda.Device().synchronize()
        for _ in range(3):
            graph.launch(stream)
        stream.synchronize()
        yield down(results)


def poisoned(spec: Spec, q: Any) -> tuple[Any, Any]:
    """Outputs full of NaN, and the pool's free memory too."""
    cp = cupy()
    heads, length = (2, 1) if spec.layout == "bshd" else (1, 2)
    waste = cp.full(1 << 22, 0xFFFF, np.uint16)
    del waste
    o = cp.full((*q.shape[:3], spec.head_dim.v), -1, f"i{spec.element.bytes}").view(spec.element.numpy)
    return o, cp.full((q.shape[0], q.shape[heads], q.shape[length]), np.nan, np.float32)
