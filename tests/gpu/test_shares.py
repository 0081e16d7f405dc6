"""Keys in shares and rows of a group on a GPU: few queries against many keys, chunks of few heads, lengths on the device, graphs."""

from typing import Any

import numpy as np
import pytest

import flashgen
from flashgen.bench.cases import rounded
from flashgen.bench.paged import in_pages, table
from flashgen.spec import Spec
from tests.gpu.judge import cupy, down, judge, poisoned, up
from tests.plan.agreement import arrays

SLOPES = {"slopes": {"shape": ["hq"], "dtype": "float32"}}
ALL = {
    "mask": "causal & window(1500, 0)",
    "score": "softcap * tanh((s + slopes[h] * (kv_idx - q_idx - kv_len + q_len)) / softcap)",
    "softmax": {"sink": "slopes[h]"},
    "params": {"softcap": 30.0},
    "tensors": SLOPES,
}
CASES: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {  # a spec; batch, query heads, key/value heads, queries, keys
    "token": ({"head_dim": 128, "mask": "causal"}, (2, 32, 8, 1, 3000)),
    "narrow": ({"head_dim": 64, "mask": "causal", "dtype": "float16"}, (3, 16, 2, 1, 777)),
    "everything": ({"head_dim": 64, "layout": "bhsd", **ALL}, (2, 8, 2, 5, 2100)),
    "wide": ({"head_dim": 256, "out_dtype": "float32"}, (2, 8, 2, 3, 1000)),
    "128 rows": ({"head_dim": 128, "mask": "causal"}, (1, 16, 2, 16, 2000)),
    "heads of their own": ({"head_dim": 64, "mask": "kv_idx < 200 * (h + 1)"}, (2, 8, 2, 2, 1500)),
    "latent": ({"head_dim": {"qk": 576, "v": 512}, "mask": "causal"}, (1, 16, 1, 1, 1000)),
    "chunk": ({"head_dim": 128, "mask": "causal"}, (1, 1, 1, 200, 8300)),
    "chunk of 64": ({"head_dim": 64, **ALL}, (1, 2, 2, 140, 8200)),
}


def made(name: str, split: str | int) -> tuple[Spec, tuple[Any, Any, Any], dict[str, Any]]:
    """The spec, q, k, v, and what it reads."""
    keys, (batch, heads, kv_heads, q_len, kv_len) = CASES[name]
    spec = Spec(**{"dtype": "bfloat16", "outputs": ["o", "lse"], "split": split, **keys})
    values = {t.name: np.random.default_rng(1).standard_normal(heads).astype(np.float32) / 20 for t in spec.tensors}
    return spec, tuple(arrays(spec, batch, heads, kv_heads, q_len, kv_len)), values


def called(attn: Any, spec: Spec, qkv: Any, values: dict[str, Any]) -> list[Any]:
    """The outputs, into poisoned memory."""
    there = up(*qkv)
    out = None if spec.out_dtype else poisoned(spec, there[0])  # which is of the dtype of q
    return down(attn(*there, out=out, **dict(zip(values, up(*values.values()), strict=True))))


@pytest.mark.parametrize("split", ["invariant", "auto"])
@pytest.mark.parametrize("name", CASES)
def test_shares(name: str, split: str) -> None:
    spec, qkv, values = made(name, split)
    attn = flashgen.compile(spec)
    got = called(attn, spec, qkv, values)
    judge(spec, got, *qkv, **values)
    assert any(kernel.program.combine for kernel in attn.kernels) or attn.arch.name != "sm_90a"


@pytest.mark.parametrize("name", ["token", "chunk of 64"])
def test_a_number_of_shares_on_the_engine_of_other_architectures(name: str) -> None:
    spec, qkv, values = made(name, 3)
    attn = flashgen.compile(spec, "sm_90" if flashgen.compile(spec).arch.name == "sm_90a" else None)
    judge(spec, called(attn, spec, qkv, values), *qkv, **values)


@pytest.mark.parametrize("name", ["token", "chunk"])
def test_the_same_bits_alone_and_in_company(name: str) -> None:
    spec, (q, k, v), values = made(name, "invariant")
    q, k, v = (np.concatenate([x, x[::-1] * x.dtype.type(0.5), x]) for x in (q, k, v))
    attn = flashgen.compile(spec)
    together = called(attn, spec, (q, k, v), values)
    for b in range(len(q)):
        alone = called(attn, spec, (q[b : b + 1], k[b : b + 1], v[b : b + 1]), values)
        assert all((x.view(np.uint8) == y[b : b + 1].view(np.uint8)).all() for x, y in zip(alone, together, strict=True))


@pytest.mark.parametrize("q_len", [1, 8])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_the_same_bits_whoever_has_the_strands(head_dim: int, q_len: int) -> None:
    """Eight query tiles a sequence: a warp has a strand, of a cluster alone on multiprocessors or not, or two strands, or all in turn."""
    spec = Spec(head_dim=head_dim, dtype="bfloat16", mask="causal", outputs=["o", "lse"])
    batches, qkv = (1, 2, 5, 34, 140), arrays(spec, 140, 32, 8, q_len, 600)
    attn = flashgen.compile(spec)
    found = [called(attn, spec, tuple(x[:batch] for x in qkv), {}) for batch in batches]
    for batch, some in zip(batches, found, strict=True):
        assert all((x.view(np.uint8) == y[:batch].view(np.uint8)).all() for x, y in zip(some, found[-1], strict=True))
    few = tuple(x[:2] for x in qkv)
    judge(spec, found[1], *few)


def test_lengths_on_the_device_and_what_lies_behind_them() -> None:
    spec = Spec(head_dim=128, dtype="bfloat16", mask="causal", cache="contiguous", outputs=["o", "lse"])
    q, k, v = arrays(spec, 4, 8, 2, 2, 1200)
    attn = flashgen.compile(spec)
    for lengths in ([0, 1, 700, 1200], [3, 512, 513, 0]):
        kv_lens = np.array(lengths, np.int32)
        for b, n in enumerate(lengths):
            k[b, n:], v[b, n:] = np.nan, np.nan
        judge(spec, called(attn, spec, (q, k, v), {"kv_lens": kv_lens}), q, k, v, kv_lens=kv_lens)
        q, k, v = arrays(spec, 4, 8, 2, 2, 1200, seed=1)


def test_graphs_replay_shares() -> None:
    cp, (spec, qkv, _) = cupy(), made("token", "invariant")
    attn, stream, there = flashgen.compile(spec), cp.cuda.Stream(non_blocking=True), up(*qkv)
    out = poisoned(spec, there[0])
    attn(*there, out=out)  # compiled and loaded before
    cp.cuda.Device().synchronize()
    with stream:
        stream.begin_capture()
        attn(*there, out=out)
        graph = stream.end_capture()
    for seed in range(3):
        new = arrays(spec, 2, 32, 8, 1, 3000, seed=seed)
        for x, y in zip(there, up(*new), strict=True):
            x.view("uint8")[...] = y.view("uint8")
        cp.cuda.Device().synchronize()
        graph.launch(stream)
        stream.synchronize()
        judge(spec, down(out), *new)


@pytest.mark.parametrize("heads", [8, 3])
@pytest.mark.parametrize("page", [0, 1, 16])
def test_an_engines_batch(page: int, heads: int) -> None:
    """Single tokens with long caches beside a prompt and a chunk, in one launch; a sequence has the same bits alone."""
    lengths, kv_heads = [(1, 5000), (70, 300), (0, 10), (1, 3000), (40, 2000), (1, 0)], 2 if heads == 8 else 1
    spec = Spec(
        head_dim=64, dtype="bfloat16", mask="causal", layout="thd", outputs=["o", "lse"], **({"cache": {"page": page}} if page else {})
    )
    rng, (q_lens, kv_lens) = np.random.RandomState(page), zip(*lengths, strict=True)
    ends_q, ends_k = (np.cumsum([0, *x], dtype=np.int32) for x in (q_lens, kv_lens))
    q = rounded(rng.standard_normal((ends_q[-1], heads, 64)), "bfloat16")
    if page:
        block_table = table(len(lengths), 5008 // page, rng)
        k, v = (in_pages(spec, rounded(rng.standard_normal((len(lengths), kv_heads, 5008, 64)), "bfloat16"), block_table) for _ in range(2))
        values = {"cu_seqlens_q": ends_q, "kv_lens": np.int32(kv_lens), "block_table": block_table}
    else:
        k, v = (rounded(rng.standard_normal((ends_k[-1], kv_heads, 64)), "bfloat16") for _ in range(2))
        values = {"cu_seqlens_q": ends_q, "cu_seqlens_k": ends_k}
    attention = flashgen.compile(spec)
    found = down(attention(*up(q, k, v), **dict(zip(values, up(*values.values()), strict=True))))
    judge(spec, found, q, k, v, **values)
    for b in (0, 4):
        rows, own = slice(ends_q[b], ends_q[b + 1]), {"cu_seqlens_q": np.int32([0, lengths[b][0]])}
        keys = slice(None) if page else slice(ends_k[b], ends_k[b + 1])
        of_keys = {name: values[name][b : b + 1] for name in values.keys() & {"kv_lens", "block_table"}} or {
            "cu_seqlens_k": np.int32([0, lengths[b][1]])
        }
        own |= of_keys
        alone = down(attention(*up(q[rows], k[keys], v[keys]), **dict(zip(own, up(*own.values()), strict=True))))
        assert alone[0].tobytes() == found[0][rows].tobytes()


def test_many_sequences() -> None:
    """More of them than a grid's second axis counts; the last is looked at."""
    cp, batch = cupy(), 65536
    q, k, v = (cp.random.standard_normal((batch, n, h, 64)).astype(np.float16) for n, h in ((1, 2), (4, 1), (4, 1)))
    spec = Spec(head_dim=64, dtype="float16", mask="causal", outputs=["o", "lse"])
    found = flashgen.compile(spec)(q, k, v)
    last = slice(batch - 3, batch)
    judge(spec, down([x[last] for x in found]), *(x[last].get() for x in (q, k, v)))


def test_states_merge_on_the_gpu() -> None:
    rng = np.random.default_rng(0)
    o = [rng.standard_normal((2, 5, 4, 64)).astype(np.float32) for _ in range(2)]
    lse = [rng.standard_normal((2, 4, 5)).astype(np.float32) for _ in range(2)]
    lse[0][0, 0], o[0][0, :, 0] = -np.inf, 0
    here = flashgen.merge_states(o[0], lse[0], o[1], lse[1])
    there = flashgen.merge_states(*up(o[0], lse[0], o[1], lse[1]))
    for x, y in zip(here, down(there), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
