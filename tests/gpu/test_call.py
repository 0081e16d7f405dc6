"""Calls on a GPU: arrays of every library, strides, streams, devices; right by the error rule, outputs poisoned, memory watched.

pytest tests/gpu -m gpu
"""

import threading
from typing import Any

import numpy as np
import pytest

import flashgen
from flashgen.errors import BackendError, CallError, PlanError
from flashgen.expr import reference
from flashgen.runtime import arrays as runtime_arrays
from flashgen.runtime import device
from flashgen.spec import Spec
from tests.plan.agreement import SLACK, arrays, error, plain

BF16 = Spec(head_dim=64, dtype="bfloat16", mask="causal", outputs=["o", "lse"])


def judge(spec: Spec, got: Any, q: Any, k: Any, v: Any, **values: Any) -> None:
    """The error rule: at most twice the error of plain attention in the same dtype, and a bit."""
    o, lse = got
    expected_o, expected_lse = reference(spec, q, k, v, **values)
    allowed = 2 * error(plain(spec, q, k, v, **values), expected_o) + SLACK[spec.dtype]
    assert error(o, expected_o) <= allowed
    assert error(lse, expected_lse) <= 1e-3


def cupy() -> Any:
    return pytest.importorskip("cupy")


def up(*xs: Any) -> list[Any]:
    """NumPy arrays on the current GPU, by CuPy."""
    return [cupy().asarray(x) for x in xs]


def down(xs: Any) -> list[Any]:
    """Back to NumPy; 16-bit floats as bits, since CuPy has few kernels for bfloat16."""
    return [x.view(np.uint16).get().view(x.dtype) if x.itemsize == 2 else x.get() for x in xs]


def poisoned(spec: Spec, q: Any) -> tuple[Any, Any]:
    """Outputs full of NaN, and the pool's free memory too."""
    cp = cupy()
    heads, length = (2, 1) if spec.layout == "bshd" else (1, 2)
    waste = cp.full(1 << 22, 0xFFFF, np.uint16)
    del waste
    o = cp.full((*q.shape[:3], spec.head_dim.v), 0xFFFF, np.uint16).view(spec.element.numpy)
    return o, cp.full((q.shape[0], q.shape[heads], q.shape[length]), np.nan, np.float32)


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
@pytest.mark.parametrize("head_dim", [8, 32, 40, 72, 96, 128, 160, 256, {"qk": 192, "v": 128}, {"qk": 64, "v": 136}])
def test_head_dims(head_dim: Any, layout: str) -> None:
    spec = Spec(head_dim=head_dim, dtype="bfloat16", mask="causal", layout=layout, outputs=["o", "lse"])
    q, k, v = arrays(spec, 1, 4, 2, 200, 333)
    judge(spec, down(flashgen.compile(spec)(*up(q, k, v), out=poisoned(spec, q))), q, k, v)


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


def view_cases() -> dict[str, Any]:
    """Changes of memory that keep the values: the array, as CuPy has it, to one with other strides."""

    def padded(x: Any, columns: int, offset: int = 0) -> Any:
        memory = cupy().full(x.size // x.shape[3] * (x.shape[3] + columns) + 8, 0xFFFF, np.uint16)
        inside = memory[offset : offset + x.size // x.shape[3] * (x.shape[3] + columns)].reshape(*x.shape[:3], x.shape[3] + columns)
        inside[..., : x.shape[3]] = x.view(np.uint16)
        return inside.view(x.dtype)[..., : x.shape[3]]

    def spread(x: Any) -> Any:
        memory = cupy().full((*x.shape[:3], 2 * x.shape[3]), 0xFFFF, np.uint16)
        memory[..., ::2] = x.view(np.uint16)
        return memory.view(x.dtype)[..., ::2]

    def turned(x: Any) -> Any:
        return cupy().ascontiguousarray(x.view(np.uint16).swapaxes(1, 2)).view(x.dtype).swapaxes(1, 2)

    def reversed_rows(x: Any) -> Any:
        return cupy().ascontiguousarray(x.view(np.uint16)[:, ::-1]).view(x.dtype)[:, ::-1]

    return {
        "16-byte rows": lambda x: padded(x, 8),
        "heads first": turned,
        "8-byte rows": lambda x: padded(x, 4),
        "4-byte rows": lambda x: padded(x, 2),
        "2-byte rows": lambda x: padded(x, 1),
        "a first element off by 2 bytes": lambda x: padded(x, 8, 1),
        "every other column": spread,
        "rows reversed": reversed_rows,
        "Fortran order": lambda x: cupy().asfortranarray(x.view(np.uint16)).view(x.dtype),
    }


@pytest.mark.parametrize("case", view_cases())
@pytest.mark.parametrize("which", ["q", "k", "v", "out", "all"])
def test_views(case: str, which: str) -> None:
    q, k, v = arrays(BF16, 2, 4, 2, 150, 190)
    change = view_cases()[case]
    given = dict(zip("qkv", up(q, k, v), strict=True))
    given |= {name: change(x) for name, x in given.items() if which in (name, "all")}
    before = {name: x.view(np.uint16).get() if x.strides[3] == 2 else None for name, x in given.items()}
    o, lse = poisoned(BF16, q)
    if which in ("out", "all"):
        o = change(o)
    attn = flashgen.compile(BF16)
    attn(**given, out=(o, lse))
    judge(BF16, down((o, lse)), q, k, v)
    for name, bits in before.items():
        assert bits is None or np.array_equal(given[name].view(np.uint16).get(), bits)
    if case in ("16-byte rows", "heads first"):
        assert len(attn.kernels) == 1
    elif attn.arch.name == "sm_90a":
        assert "calls: " in attn.explain()


def test_what_surrounds_a_view_of_the_output_stays() -> None:
    cp = cupy()
    q, k, v = arrays(BF16, 1, 2, 2, 130, 130)
    for margin in (8, 3):
        memory = cp.full((1, 140, 2 + 1, 64 + margin), 0x1234, np.uint16)
        o = memory.view(BF16.element.numpy)[:, 5:135, 1:, :64]
        flashgen.compile(BF16)(*up(q, k, v), out=(o, cp.empty((1, 2, 130), np.float32)))
        left = memory.get()
        left[:, 5:135, 1:, :64] = 0x1234
        assert (left == 0x1234).all()


def test_keys_and_values_that_are_broadcast() -> None:
    cp = cupy()
    q, k, v = arrays(BF16, 3, 4, 1, 100, 120)
    k, v = k[:1], v[:1]
    wide = [cp.broadcast_to(x.view(np.uint16), (3, 120, 2, 64)).view(BF16.element.numpy) for x in up(k, v)]
    got = flashgen.compile(BF16)(up(q)[0], *wide, out=poisoned(BF16, q))
    judge(BF16, down(got), q, *(np.ascontiguousarray(np.broadcast_to(x, (3, 120, 2, 64))) for x in (k, v)))


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


def test_numpy_goes_over_and_back() -> None:
    q, k, v = arrays(BF16, 2, 4, 2, 100, 120)
    got = flashgen.compile(BF16)(q, k, v)
    assert [type(x) for x in got] == [np.ndarray, np.ndarray]
    judge(BF16, got, q, k, v)
    out = (np.zeros_like(q), np.zeros((2, 4, 100), np.float32))
    again = flashgen.compile(BF16, backend="gpu")(np.asfortranarray(q), k[:, ::-1][:, ::-1], v, out=out)
    assert again[0] is out[0]
    assert np.array_equal(out[0], got[0])


def test_float32_runs_in_the_interpreter_for_numpy_and_says_so_for_the_gpu() -> None:
    spec = Spec(head_dim=64, dtype="float32", mask="causal", outputs=["o", "lse"])
    q, k, v = arrays(spec, 1, 2, 2, 50, 60)
    attn = flashgen.compile(spec)
    judge(spec, attn(q, k, v), q, k, v)
    with pytest.raises(PlanError, match=r"float32.*float16 and bfloat16"):
        attn(*up(q, k, v))


def test_torch() -> None:
    torch = pytest.importorskip("torch")
    q, k, v = arrays(BF16, 2, 4, 2, 100, 120)
    family = runtime_arrays.family_of(torch.zeros(1))
    given = [family.from_numpy(x).cuda() for x in (q, k, v)]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        o, lse = flashgen.compile(BF16)(*given)
    stream.synchronize()
    assert (o.dtype, o.device, lse.dtype) == (torch.bfloat16, given[0].device, torch.float32)
    judge(BF16, [family.to_numpy(o.cpu()), lse.cpu().numpy()], q, k, v)
    with pytest.raises(CallError, match="no_grad"):
        flashgen.compile(BF16)(given[0].requires_grad_(), *given[1:])
    with torch.no_grad():
        flashgen.compile(BF16)(*given, out=(o, lse))
    on_host = flashgen.compile(BF16)(*(family.from_numpy(x) for x in (q, k, v)))
    judge(BF16, [family.to_numpy(on_host[0]), on_host[1].numpy()], q, k, v)


def test_jax() -> None:
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("JAX has no GPU backend here")
    q, k, v = arrays(BF16, 2, 4, 2, 100, 120)
    got = flashgen.compile(BF16)(*(jax.numpy.asarray(x) for x in (q, k, v)))
    assert all(isinstance(x, jax.Array) for x in got)
    judge(BF16, [np.asarray(x) for x in got], q, k, v)


class OnlyDlpack:
    def __init__(self, x: Any):
        self.x = x

    def __dlpack__(self, **options: Any) -> Any:
        return self.x.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.x.__dlpack_device__()


class OnlyInterface:
    def __init__(self, x: Any):
        self.x, self.__cuda_array_interface__ = x, x.__cuda_array_interface__


@pytest.mark.parametrize("wrap", [OnlyDlpack, OnlyInterface])
def test_protocols(wrap: Any) -> None:
    spec = Spec(head_dim=64, dtype="float16", mask="causal", outputs=["o", "lse"])
    q, k, v = arrays(spec, 2, 4, 2, 100, 120)
    judge(spec, down(flashgen.compile(spec)(*map(wrap, up(q, k, v)))), q, k, v)


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
