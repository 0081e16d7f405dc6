"""Sequences of different lengths: a cache with kv_lens, and sequences one behind the other, on a GPU and in its graphs."""

from typing import Any

import numpy as np
import pytest

import flashgen
from flashgen.errors import CallError
from flashgen.spec import Spec
from tests.emulate.test_packed import drawn, ends
from tests.gpu.judge import cupy, down, judge, up
from tests.plan.agreement import arrays

CACHES = {
    "bfloat16": Spec(head_dim=64, dtype="bfloat16", mask="causal", cache="contiguous", outputs=["o", "lse"]),
    "window": Spec(head_dim=128, dtype="float16", mask="causal & window(90, 0)", cache="contiguous", outputs=["o", "lse"]),
}
PACKED = {
    "causal": Spec(head_dim=128, dtype="bfloat16", mask="causal", layout="thd", outputs=["o", "lse"]),
    "window": Spec(head_dim=64, dtype="float16", mask="causal & window(90, 0)", layout="thd", outputs=["o", "lse"]),
    "bias": Spec(
        head_dim=64,
        dtype="bfloat16",
        layout="thd",
        score="s + bias[h, b, kv_idx] + row[b, q_idx]",
        tensors={"bias": {"shape": ["hq", "b", "kv_len"], "dtype": "float32"}, "row": {"shape": ["b", "q_len"], "dtype": "float32"}},
        outputs=["o", "lse"],
    ),
}
LENGTHS = ([300, 0, 1, 129, 64], [300, 5, 200, 0, 70]), ([1, 2, 3], [1000, 65, 3]), ([700], [700])


@pytest.mark.parametrize("q_len", [1, 130])
@pytest.mark.parametrize("name", CACHES)
def test_a_cache(name: str, q_len: int) -> None:
    spec = CACHES[name]
    attn = flashgen.compile(spec)
    for seed, lengths in enumerate(([0, 600, 131, 1], [-5, 2**31 - 1, 64, 599])):
        q, k, v = arrays(spec, 4, 8, 2, q_len, 600, seed=seed)
        for b, n in enumerate(np.clip(lengths, 0, 600)):
            k[b, n:], v[b, n:] = np.nan, np.inf
        kv_lens = np.array(lengths, np.int32)
        got = attn(*up(q, k, v), kv_lens=up(kv_lens)[0])
        judge(spec, down(got), q, k, v, kv_lens=kv_lens)


@pytest.mark.parametrize("name", PACKED)
def test_sequences_one_behind_the_other(name: str) -> None:
    """One compiled call serves any lengths; a sequence full of NaN is its own affair."""
    spec = PACKED[name]
    attn = flashgen.compile(spec)
    for lengths in LENGTHS:
        cu_seqlens = dict(zip(("cu_seqlens_q", "cu_seqlens_k"), map(ends, lengths), strict=True))
        q, k, v, values = drawn(spec, *cu_seqlens.values())
        given = values | cu_seqlens
        on_gpu = dict(zip(given, up(*given.values()), strict=True))
        judge(spec, down(attn(*up(q, k, v), check=True, **on_gpu)), q, k, v, **given)
        begin, end = cu_seqlens["cu_seqlens_k"][:2]
        clean = attn(*up(q, k, v), **on_gpu)
        k[begin:end], v[begin:end] = np.nan, np.nan
        rows = slice(cu_seqlens["cu_seqlens_q"][1], None)
        bad = attn(*up(q, k, v), **on_gpu)
        for x, y in zip(down(clean), down(bad), strict=True):
            of_rows = (rows,) if x.ndim == 3 else (slice(None), rows)
            np.testing.assert_array_equal(x[of_rows].view(np.uint8), y[of_rows].view(np.uint8))


def test_wild_lengths_leave_the_device_alive() -> None:
    spec, cp = PACKED["window"], cupy()
    attn = flashgen.compile(spec)
    q, k, v, _ = drawn(spec, ends([500]), ends([500]))
    qkv = up(q, k, v)
    for seed in range(5):
        wild = np.random.default_rng(seed).choice([-(2**31), -1, 0, 250, 499, 501, 2**31 - 1], 70).astype(np.int32)
        attn(*qkv, cu_seqlens_q=cp.asarray(wild), cu_seqlens_k=cp.asarray(wild[::-1].copy()))
    cp.cuda.Device().synchronize()
    cu_seqlens = {"cu_seqlens_q": ends([500]), "cu_seqlens_k": ends([500])}
    judge(spec, down(attn(*qkv, **dict(zip(cu_seqlens, up(*cu_seqlens.values()), strict=True)))), q, k, v, **cu_seqlens)
    with pytest.raises(CallError, match="cu_seqlens_q begins with 3"):
        attn(*qkv, check=True, cu_seqlens_q=cp.asarray(np.int32([3, 500])), cu_seqlens_k=cp.asarray(np.int32([0, 500])))


@pytest.mark.parametrize("spec", [CACHES["bfloat16"], PACKED["causal"]], ids=["cache", "packed"])
def test_lengths_change_under_a_captured_graph(spec: Spec) -> None:
    cp, attn = cupy(), flashgen.compile(spec)
    packed = spec.geometry.packed
    choices: list[dict[str, Any]] = [{"kv_lens": np.int32(x)} for x in ([300, 7], [0, 129], [64, 300])]
    if packed:
        pairs = ([0, 9, 300], [0, 9, 300]), ([0, 0, 300], [0, 200, 300])
        choices = [{"cu_seqlens_q": np.int32(x), "cu_seqlens_k": np.int32(y)} for x, y in pairs]
    q, k, v = drawn(spec, ends([300]), ends([300]))[:3] if packed else arrays(spec, 2, 4, 2, 70, 300)
    qkv, stream = up(q, k, v), cp.cuda.Stream(non_blocking=True)
    there = dict(zip(choices[0], up(*choices[0].values()), strict=True))
    attn(*qkv, **there)  # compiled and loaded before
    cp.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        out = attn(*qkv, **there)
        graph = stream.end_capture()
    for lengths in choices:
        for name, x in lengths.items():
            there[name][...] = cp.asarray(x)
        cp.cuda.Device().synchronize()
        graph.launch(stream)
        stream.synchronize()
        judge(spec, down(out), q, k, v, **lengths)
