"""Launchers on a GPU: prepared once, they serve lengths as they come, captured ones too, and change nothing that is not theirs."""

from typing import Any

import numpy as np
import pytest

import flashgen
from flashgen.bench.paged import in_pages, table
from flashgen.spec import Spec
from tests.emulate.test_packed import drawn, ends
from tests.gpu.judge import cupy, down, judge, poisoned, up
from tests.plan.agreement import arrays

BASE = {"head_dim": 64, "dtype": "bfloat16", "mask": "causal", "outputs": ["o", "lse"]}
SPECS = {
    "dense": Spec(**BASE),
    "whole": Spec(**BASE, split=1),
    "auto": Spec(**BASE, split="auto"),
    "heads first": Spec(**BASE, layout="bhsd"),
    "float32": Spec(**BASE | {"dtype": "float32"}),
}


@pytest.mark.parametrize("q_len", [1, 70])
@pytest.mark.parametrize("name", SPECS)
def test_a_cache_that_grows(name: str, q_len: int) -> None:
    spec = SPECS[name]
    run = flashgen.compile(spec).prepare(max_batch=3, max_q_len=q_len, max_kv_len=3000, heads=8, kv_heads=2)
    for batch, kv_len in [(3, 2000), (3, 2001), (3, 2002), (2, 2003), (3, 70), (3, 3000)]:
        q, k, v = arrays(spec, batch, 8, 2, q_len, kv_len, seed=kv_len)
        given = up(q, k, v)
        out = poisoned(spec, given[0])
        assert run(*given, out=out) is out
        judge(spec, down(out), q, k, v)


def captured(run: Any, given: list[Any], out: Any, tensors: dict[str, Any]) -> tuple[Any, Any]:
    stream = cupy().cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        run(*given, out=out, **tensors)
        return stream.end_capture(), stream


def replayed(graph: Any, stream: Any) -> None:
    cupy().cuda.Device().synchronize()
    for _ in range(3):
        graph.launch(stream)
    stream.synchronize()


def test_lengths_change_between_replays() -> None:
    """The first call is captured: nothing has to be made for it."""
    spec = Spec(**BASE, cache="contiguous")
    run = flashgen.compile(spec).prepare(max_batch=4, max_q_len=1, max_kv_len=4096, heads=8, kv_heads=2)
    q, k, v = arrays(spec, 4, 8, 2, 1, 4096)
    given, kv_lens = up(q, k, v), cupy().zeros(4, np.int32)
    out = poisoned(spec, given[0])
    graph, stream = captured(run, given, out, {"kv_lens": kv_lens})
    for lengths in ([4096, 1, 0, 700], [3, 2000, 4096, 4095]):
        kv_lens[...] = cupy().asarray(lengths, dtype=np.int32)
        replayed(graph, stream)
        judge(spec, down(out), q, k, v, kv_lens=np.int32(lengths))


def test_pages_change_between_replays() -> None:
    spec, rng = Spec(**BASE, cache={"page": 16}), np.random.RandomState(0)
    run = flashgen.compile(spec).prepare(max_batch=3, max_q_len=2, max_kv_len=1024, heads=8, kv_heads=2)
    keys = [rng.standard_normal((3, 2, 1024, 64)).astype(spec.element.numpy) for _ in range(2)]
    q = rng.standard_normal((3, 2, 8, 64)).astype(spec.element.numpy)
    first = table(3, 64, rng)
    k, v = (in_pages(spec, x, first) for x in keys)
    given, tensors = up(q, k, v), dict(zip(("kv_lens", "block_table"), up(np.zeros(3, np.int32), first), strict=True))
    out = poisoned(spec, given[0])
    graph, stream = captured(run, given, out, tensors)
    for lengths in ([1024, 17, 500], [2, 1000, 0]):
        block_table = rng.permutation(first.reshape(-1)).reshape(first.shape).astype(np.int32)
        for name, x in (("kv_lens", np.int32(lengths)), ("block_table", block_table)):
            tensors[name][...] = cupy().asarray(x)
        for there, x in zip(given[1:], keys, strict=True):
            there.view("uint16")[...] = cupy().asarray(in_pages(spec, x, block_table).view(np.uint16))
        replayed(graph, stream)
        judge(spec, down(out), q, *(in_pages(spec, x, block_table) for x in keys), kv_lens=np.int32(lengths), block_table=block_table)


def test_sequences_one_behind_the_other() -> None:
    spec = Spec(**BASE, layout="thd")
    run = flashgen.compile(spec).prepare(max_batch=5, max_q_len=600, max_kv_len=700, heads=4, kv_heads=2)
    for lengths in ([300, 0, 1, 129, 64], [300, 5, 200, 0, 70]), ([1, 2, 3], [600, 65, 3]):
        cu_seqlens = dict(zip(("cu_seqlens_q", "cu_seqlens_k"), map(ends, lengths), strict=True))
        q, k, v, _ = drawn(spec, *cu_seqlens.values())
        given = up(q, k, v)
        cp = cupy()
        out = cp.empty_like(given[0]), cp.empty((q.shape[1], q.shape[0]), np.float32)
        run(*given, out=out, **dict(zip(cu_seqlens, up(*cu_seqlens.values()), strict=True)))
        judge(spec, down(out), q, k, v, **cu_seqlens)


def test_tensors_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    spec = Spec(**BASE | {"outputs": ["o"]})
    attn = flashgen.compile(spec)
    run = attn.prepare(max_batch=2, max_q_len=1, max_kv_len=2000, heads=8, kv_heads=2)
    q = torch.randn(2, 1, 8, 64, dtype=torch.bfloat16, device="cuda")
    k, v = (torch.randn(2, 2000, 2, 64, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    for kv_len in range(1500, 1510):
        o = torch.full_like(q, float("nan"))
        assert run(q, k[:, :kv_len], v[:, :kv_len], out=o) is o
        assert torch.equal(o, attn(q, k[:, :kv_len], v[:, :kv_len]))
    before = torch.cuda.memory_allocated()
    run(q, k, v, out=o)
    assert torch.cuda.memory_allocated() == before
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(q, k, v, out=o)
    q.normal_()
    graph.replay()
    assert torch.equal(o, attn(q, k, v))
