"""Calls captured in a CUDA graph: replays are right on what arrays hold by then, beside each other, and after others used the pool."""

from typing import Any

import numpy as np
import pytest

import flashgen
from flashgen.spec import Spec
from tests.gpu.judge import BF16, cupy, down, judge, poisoned, up
from tests.plan.agreement import arrays

DOCUMENT = Spec(
    head_dim=64,
    dtype="bfloat16",
    mask="causal & document(ids)",
    tensors={"ids": {"shape": ["b", "kv_len"], "dtype": "int32"}},
    outputs=["o", "lse"],
)


def given(spec: Spec, seed: int) -> tuple[list[Any], dict[str, Any]]:
    values = {"ids": np.repeat(np.arange(5, dtype=np.int32), 60)[None].repeat(2, 0)} if spec.tensors else {}
    return arrays(spec, 2, 4, 2, 300, 300, seed=seed), values


def capture(attn: Any, stream: Any, qkv: Any, out: Any, values: Any) -> Any:
    with stream:
        stream.begin_capture()
        attn(*qkv, out=out, **values)
        return stream.end_capture()


@pytest.mark.parametrize("spec", [BF16, DOCUMENT], ids=["causal", "document"])
def test_cupy_replays(spec: Spec) -> None:
    """A graph captured twice in one stream, replayed in two at once, on new contents, while the pool's memory is written to."""
    cp, attn = cupy(), flashgen.compile(spec)
    streams = [cp.cuda.Stream(non_blocking=True) for _ in range(2)]
    calls, values = [], {name: up(x)[0] for name, x in given(spec, 0)[1].items()}
    for seed in range(2):
        qkv = up(*given(spec, seed)[0])
        out = poisoned(spec, qkv[0])
        attn(*qkv, out=out, **values)  # compiled and loaded before
        calls.append((qkv, out))
    cp.cuda.Device().synchronize()
    graphs = [capture(attn, streams[0], qkv, out, values) for qkv, out in calls]
    for round in range(3):
        for seed, (qkv, out) in enumerate(calls):
            for x, new in zip((*qkv, *out), (*up(*given(spec, 10 * round + seed)[0]), *poisoned(spec, qkv[0])), strict=True):
                x.view("uint8")[...] = new.view("uint8")
        waste = [cp.full(1 << n, 0xFF, np.uint8) for n in range(9, 22)]
        cp.cuda.Device().synchronize()
        for _ in range(20):
            for stream, graph in zip(streams, graphs, strict=True):
                graph.launch(stream)
        cp.cuda.Device().synchronize()
        del waste
        for seed, (_, out) in enumerate(calls):
            qkv, plain = given(spec, 10 * round + seed)
            judge(spec, down(out), *qkv, **plain)


def test_a_captured_call_and_others_in_its_stream_share_nothing() -> None:
    cp, attn = cupy(), flashgen.compile(BF16)
    stream, (q, k, v) = cp.cuda.Stream(non_blocking=True), arrays(BF16, 2, 4, 2, 700, 700)
    qkv = up(q, k, v)
    out, beside = poisoned(BF16, qkv[0]), poisoned(BF16, qkv[0])
    with stream:
        attn(*qkv, out=beside)
    stream.synchronize()
    graph, other = capture(attn, stream, qkv, out, {}), cp.cuda.Stream(non_blocking=True)
    for _ in range(20):
        graph.launch(other)
        with stream:
            attn(*qkv, out=beside)
    cp.cuda.Device().synchronize()
    judge(BF16, down(out), q, k, v)
    judge(BF16, down(beside), q, k, v)


@pytest.mark.parametrize("spec", [BF16, DOCUMENT], ids=["causal", "document"])
def test_torch_replays(spec: Spec) -> None:
    torch = pytest.importorskip("torch")
    attn = flashgen.compile(spec)
    numbers, plain = given(spec, 0)
    qkv = [torch.from_numpy(x.view(np.int16)).cuda().view(torch.bfloat16) for x in numbers]
    values = {name: torch.from_numpy(x).cuda() for name, x in plain.items()}
    attn(*qkv, **values)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o, lse = attn(*qkv, **values)
    for seed in range(3):
        numbers, _ = given(spec, seed)
        for x, new in zip(qkv, numbers, strict=True):
            x.copy_(torch.from_numpy(new.view(np.int16)).cuda().view(torch.bfloat16))
        waste = torch.full((1 << 24,), 255, dtype=torch.uint8, device="cuda")
        graph.replay()
        torch.cuda.synchronize()
        del waste
        judge(spec, [o.view(torch.int16).cpu().numpy().view(spec.element.numpy), lse.cpu().numpy()], *numbers, **plain)
