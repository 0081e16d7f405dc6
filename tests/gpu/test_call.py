"""Calls on a GPU: right by the error rule, outputs poisoned, streams, threads, devices, memory watched.

pytest tests/gpu -m gpu
"""

import threading
from typing import Any

import numpy as np
import pytest

import flashgen
from flashgen.errors import BackendError, CallError
from flashgen.expr.meaning.reference import reference
from flashgen.runtime import device
from flashgen.spec import Spec
from tests.gpu.judge import BF16, cupy, down, judge, poisoned, up
from tests.plan.agreement import arrays


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("mask", ["full", "causal", "causal & window(70, 0)"])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (4, 1)])
@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 1), (1, 300), (128, 128), (129, 257), (300, 130), (515, 515)])
def test_forward(dtype: str, mask: str, heads: int, kv_heads: int, q_len: int, kv_len: int) -> None:
    spec = Spec(head_dim=64, dtype=dtype, mask=mask, outputs=["o", "lse"])
    q, k, v = arrays(spec, 2, heads, kv_heads, q_len, kv_len, seed=q_len)
    out = poisoned(spec, q)
    got = flashgen.compile(spec)(*up(q, k, v), out=out)
    assert got[0] is out[0]
    judge(spec, down(got), q, k, v)


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize(
    "head_dim", [8, 32, 40, 72, 96, 128, 160, 256, {"qk": 192, "v": 128}, {"qk": 64, "v": 136}, 320, {"qk": 576, "v": 512}]
)
def test_head_dims(head_dim: Any, layout: str) -> None:
    spec = Spec(head_dim=head_dim, dtype="bfloat16", mask="causal", layout=layout, outputs=["o", "lse"])
    q, k, v = arrays(spec, 1, 4, 2, 200, 333)
    judge(spec, down(flashgen.compile(spec)(*up(q, k, v), out=poisoned(spec, q))), q, k, v)


@pytest.mark.parametrize("head_dim", [64, 72, {"qk": 576, "v": 512}])
@pytest.mark.parametrize(("dtype", "out_dtype"), [("bfloat16", "float32"), ("float16", "bfloat16")])
def test_o_of_another_dtype(dtype: str, out_dtype: str, head_dim: Any) -> None:
    spec = Spec(head_dim=head_dim, dtype=dtype, out_dtype=out_dtype, mask="causal")
    q, k, v = arrays(spec, 2, 4, 2, 300, 333)
    (o,) = down([flashgen.compile(spec)(*up(q, k, v))])
    want = reference(spec, q, k, v)[0]
    rounding = max(spec.element.rounding, spec.out_element.rounding)
    assert o.dtype == spec.out_element.numpy
    assert np.linalg.norm(o.astype(np.float64) - want) <= 2 * rounding * np.linalg.norm(want)


def test_params_and_tensors() -> None:
    spec = Spec(
        head_dim=64,
        dtype="bfloat16",
        mask="causal & window(left, 0)",
        score="softcap * tanh(s / softcap) + slopes[h] * (kv_idx - q_idx)",
        params={"softcap": 20.0, "left": 100},
        tensors={"slopes": {"shape": ["hq"], "dtype": "float32"}},
        outputs=["o", "lse"],
    )
    q, k, v = arrays(spec, 2, 4, 2, 200, 250)
    slopes = np.float32([0.5, 0.25, 0.125, 0.0625])
    attn = flashgen.compile(spec)
    for values in ({}, {"softcap": 5.0}, {"left": 3}):
        judge(spec, down(attn(*up(q, k, v), slopes=up(slopes)[0], out=poisoned(spec, q), **values)), q, k, v, slopes=slopes, **values)
    assert len(attn.kernels) == 1


@pytest.mark.parametrize(
    "mask", ["causal & document(ids)", "~document(ids) | prefix(9)", "ids[b, kv_idx] <= ids[b, q_idx + kv_len - q_len]"]
)
@pytest.mark.parametrize("ordered", [True, False])
def test_masks_that_read_tensors_at_rows_and_keys(mask: str, ordered: bool) -> None:
    spec = Spec(
        head_dim=64, dtype="float16", mask=mask, tensors={"ids": {"shape": ["b", "kv_len"], "dtype": "int32"}}, outputs=["o", "lse"]
    )
    for lengths in ((1500, 1500), (300, 2000), (70, 0), (1, 1)):
        q, k, v = arrays(spec, 2, 4, 2, *lengths)
        ids = np.random.default_rng().integers(0, 7, (2, lengths[1])).astype(np.int32)
        ids = np.sort(ids, axis=1) if ordered else ids
        judge(spec, down(flashgen.compile(spec)(*up(q, k, v), ids=up(ids)[0], out=poisoned(spec, q))), q, k, v, ids=ids)


def test_padding_beyond_the_end_never_leaks() -> None:
    cp = cupy()
    q, k, v = arrays(BF16, 2, 2, 2, 137, 192)
    given = []
    for x in (q, k, v):
        memory = cp.full((2, x.shape[1] + 70, 2, 64), 0x7FFF, np.uint16)
        memory[:, : x.shape[1]] = cp.asarray(x.view(np.uint16))
        given.append(memory[:, : x.shape[1]].view(x.dtype))
    judge(BF16, down(flashgen.compile(BF16)(*given, out=poisoned(BF16, q))), q, k, v)


@pytest.mark.parametrize(("b", "q_len", "kv_len"), [(0, 5, 5), (2, 0, 5), (2, 5, 0), (2, 0, 0)])
def test_nothing_is_not_an_error(b: int, q_len: int, kv_len: int) -> None:
    q, k, v = arrays(BF16, b, 4, 2, q_len, kv_len)
    o, lse = down(flashgen.compile(BF16)(*up(q, k, v), out=poisoned(BF16, q)))
    assert o.shape == q.shape
    assert not o.astype(np.float32).any()
    assert np.isneginf(lse).all()


def test_streams_and_threads() -> None:
    """Each thread in its own stream, its inputs made there just before the call."""
    cp = cupy()
    attn = flashgen.compile(BF16)
    cases = [arrays(BF16, 1, 4, 2, 300 + i, 400, seed=i) for i in range(4)]
    results: dict[int, Any] = {}

    def run(i: int) -> None:
        stream = cp.cuda.Stream(non_blocking=True)
        with stream:
            for _ in range(20):
                results[i] = attn(*up(*cases[i]))
        stream.synchronize()

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, case in enumerate(cases):
        judge(BF16, down(results[i]), *case)


def test_runs_are_bit_identical() -> None:
    q, k, v = up(*arrays(BF16, 2, 8, 2, 1000, 1000))
    attn = flashgen.compile(BF16)
    first = [x.view(np.uint16 if x.itemsize == 2 else np.uint32).get() for x in attn(q, k, v)]
    for _ in range(10):
        again = [x.view(np.uint16 if x.itemsize == 2 else np.uint32).get() for x in attn(q, k, v, out=poisoned(BF16, q))]
        assert all(map(np.array_equal, first, again))


def test_many_blocks() -> None:
    spec = Spec(head_dim=16, dtype="float16", outputs=["o", "lse"])
    q, k, v = arrays(spec, 70000, 1, 1, 1, 1)
    o, _ = down(flashgen.compile(spec)(*up(q, k, v), out=poisoned(spec, q)))
    assert np.array_equal(o, v)
    spec = Spec(head_dim=128, dtype="float16", outputs=["o", "lse"])
    q, k, v = arrays(spec, 1, 71280, 71280, 3, 3)
    o, lse = down(flashgen.compile(spec)(*up(q, k, v), out=poisoned(spec, q)))
    assert np.isfinite(o.astype(np.float32)).all()
    last = slice(71277, 71280)
    judge(spec, [o[:, :, last], lse[:, last]], *(x[:, :, last] for x in (q, k, v)))


def test_offsets_past_two_to_the_31_elements() -> None:
    cp = cupy()
    if cp.cuda.Device().mem_info[0] < 12 << 30:
        pytest.skip("needs 12 GB of free GPU memory")
    memory = cp.zeros((24000, 98304), np.float16)
    spec = Spec(head_dim=128, dtype="float16", outputs=["o", "lse"])
    q, k, v = arrays(spec, 1, 1, 1, 16, 24000)
    memory[:, :128], memory[:, -128:] = cp.asarray(k[0, :, 0]), cp.asarray(v[0, :, 0])
    wide_k, wide_v = (x[None, :, None] for x in (memory[:, :128], memory[:, -128:]))
    judge(spec, down(flashgen.compile(spec)(cp.asarray(q), wide_k, wide_v)), q, k, v)


def test_memory_does_not_grow_with_the_square_of_the_length() -> None:
    cp = cupy()
    spec = Spec(head_dim=64, dtype="bfloat16", mask="causal")
    q, k, v = (cp.zeros((1, 65536, 1, 64), np.uint16).view(spec.element.numpy) for _ in range(3))
    attn = flashgen.compile(spec)
    attn(q[:, :64], k[:, :64], v[:, :64])
    pool = cp.get_default_memory_pool()
    pool.free_all_blocks()
    peak, before = 0, pool.used_bytes()

    class Watch(cp.cuda.MemoryHook):
        name = "watch"

        def malloc_postprocess(self, **_: Any) -> None:
            nonlocal peak
            peak = max(peak, pool.used_bytes() - before)

    with Watch():
        o = attn(q, k, v)
    assert o.nbytes <= peak <= o.nbytes + 4 * 65536 + 4096


def test_a_bad_call_leaves_the_device_well() -> None:
    q, k, v = arrays(BF16, 1, 4, 2, 50, 60)
    attn = flashgen.compile(BF16)
    on_gpu = up(q, k, v)
    for wrong in ((on_gpu[0], *up(k), v), (on_gpu[0][..., :32], *on_gpu[1:]), (on_gpu[0].view(np.float16), *on_gpu[1:])):
        with pytest.raises(CallError):
            attn(*wrong)
    with pytest.raises(BackendError, match="takes arrays in host memory"):
        flashgen.compile(BF16, backend="interpreter")(*on_gpu)
    judge(BF16, down(attn(*on_gpu)), q, k, v)


def test_a_cubin_for_another_arch_is_refused() -> None:
    other = "sm_80" if device.device(0).arch.name.startswith(("sm_9", "sm_1")) else "sm_90a"
    with pytest.raises(BackendError, match=f"does not load a cubin for {other}"):
        flashgen.compile(BF16, arch=other)(*up(*arrays(BF16, 1, 4, 2, 50, 60)))


def test_two_devices() -> None:
    cp = cupy()
    if cp.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two GPUs")
    q, k, v = arrays(BF16, 1, 4, 2, 50, 60)
    attn = flashgen.compile(BF16)
    first = up(q, k, v)
    with cp.cuda.Device(1):
        second = up(q, k, v)
    for given, ordinal in ((first, 0), (second, 1), (first, 0)):
        got = attn(*given)
        assert [x.device.id for x in got] == [ordinal, ordinal]
        assert cp.cuda.runtime.getDevice() == 0
        cp.cuda.Device(ordinal).synchronize()
        judge(BF16, down(got), q, k, v)
    with pytest.raises(CallError, match="k lies on GPU 1 and q on GPU 0"):
        attn(first[0], second[1], first[2])
