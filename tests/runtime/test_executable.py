"""A launch hands to the driver the record, the grid, the stream. A stand-in for the driver keeps what it is given."""

import contextlib
import ctypes
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashgen.arch import by_name
from flashgen.errors import BackendError
from flashgen.plan import Program, plan
from flashgen.plan.geometry import Sizes, block_count
from flashgen.plan.params import STRIDES, record_dtype, scalars
from flashgen.render import Source
from flashgen.runtime import dealing, executable, tma
from flashgen.runtime.arrays import Layout, contiguous_strides
from flashgen.runtime.device import Device
from flashgen.runtime.nvrtc import Binary
from flashgen.spec import Spec

driver = pytest.importorskip("cuda.bindings.driver", reason="needs the cuda13 or cuda12 extra")

SPEC = Spec(
    head_dim=64,
    dtype="bfloat16",
    layout="bhsd",
    outputs=["o", "lse"],
    score="softcap * tanh(s / softcap) + bias[h, q_idx]",
    mask="causal & window(left, 0)",
    params={"softcap": 50.0, "left": 15},
    tensors={"bias": {"shape": ["hq", "q_len"], "dtype": "float32"}},
)
SIZES = Sizes(batch=2, q_len=1000, kv_len=1500, heads=8, kv_heads=2)
ADDRESSES = {
    "q": 0x1000,
    "k": 0x2000,
    "v": 0x3000,
    "o": 0x4000,
    "lse": 0x5000,
    "arg_bias": 0x6000,
    "counter": 0x7000,
    "halves": 0x8000,
}  # as LAYOUTS
ARRAYS = tuple(ADDRESSES.values())[:-2]


def packed(*shape: int, dtype: str = "bfloat16") -> Layout:
    return Layout(shape, contiguous_strides(shape), dtype, 0, 0)


LAYOUTS = {
    "q": packed(2, 8, 1000, 64),
    "k": packed(2, 2, 1500, 64),
    "v": packed(2, 2, 1500, 64),
    "o": packed(2, 8, 1000, 64),
    "lse": packed(2, 8, 1000, dtype="float32"),
    "arg_bias": Layout((8, 1000), (1, 8), "float32", 0, 0),
}


@pytest.fixture(autouse=True)
def maps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensor maps that only tell their address and their box."""
    monkeypatch.setattr(tma, "Map", lambda _, box: lambda at: np.array([at, *box] + [0] * 13, np.uint64).tobytes())


@pytest.fixture(scope="module")
def planned() -> Program:
    return plan(SPEC, "sm_90a")


def by_rows() -> dict[str, Layout]:
    return {name: executable.rows_first(x, "bhsd") if name in "qkvo" else x for name, x in LAYOUTS.items()}


def test_the_record(planned: Program) -> None:
    known = scalars(planned, SIZES, {"softcap": 30.0, "left": 7})
    record, writes = executable.fill(planned, by_rows(), known)
    memory = bytearray(record.tobytes())
    for at, into, _ in writes:
        into(memoryview(memory), tuple(ADDRESSES.values())[at])
    filled = np.frombuffer(memory, record.dtype)[0]
    for argument in planned.arguments:
        value = filled[argument.name]
        match argument.kind:
            case "tensor_map":
                assert value.view(np.uint64)[:3].tolist() == [ADDRESSES[argument.of], *argument.box]
            case "pointer":
                assert value == ADDRESSES[argument.of]
            case "array":
                assert (value["data"], value["strides"].tolist()) == (ADDRESSES["arg_bias"], [1, 8])
            case "scalar":
                assert value == np.float32(known[argument.of]) if argument.cuda == "float" else value == known[argument.of]
    assert (filled["q_len"], filled["kv_len"], filled["heads"], filled["batch"], filled["group"]) == (1000, 1500, 8, 2, 4)
    assert filled["softmax_scale"] == 0.125
    assert (filled["arg_softcap"], filled["arg_left"]) == (30.0, 7)


def test_an_array_without_elements_lies_in_memory_that_is_there(planned: Program) -> None:
    bias = by_rows()["arg_bias"]._replace(shape=(8, 0), strides=(0, 1))
    record, writes = executable.fill(planned, by_rows() | {"arg_bias": bias}, scalars(planned, SIZES, {"softcap": 30.0, "left": 7}))
    memory = bytearray(record.tobytes())
    for at, into, _ in writes:
        into(memoryview(memory), tuple(ADDRESSES.values())[at])
    filled = np.frombuffer(memory, record.dtype)[0]["arg_bias"]
    assert (filled["data"], filled["strides"].tolist()) == (ADDRESSES["counter"], [0, 0])


def test_strides_are_those_of_the_axes_whatever_the_layout() -> None:
    planned = plan(SPEC, "sm_90a", 2)
    record, _ = executable.fill(planned, by_rows(), scalars(planned, SIZES, {"softcap": 30.0, "left": 7}))
    strides = {a.of: record[a.name] for a in planned.arguments if a.kind == "strides"}
    assert strides["k"] == np.array((2 * 1500 * 64, 1500 * 64, 64, 1), STRIDES)


@pytest.mark.parametrize("kv_len", [0, 1, 16384, 10**6])
def test_sections_hold_at_least_a_head_and_at_most_all(kv_len: int) -> None:
    planned = plan(Spec(head_dim=128, dtype="bfloat16", mask="causal"), "sm_90a")
    assert 1 <= scalars(planned, Sizes(2, 5, kv_len, 32, 8), {})["section"] <= 64


@given(st.integers(1, 99), st.integers(1, 9), st.sampled_from([64, 128, 256]), st.sampled_from([300, 1024, 5000]))
def test_sections_are_as_few_as_they_can_be_and_alike(heads: int, batch: int, head_dim: int, kv_len: int) -> None:
    planned = plan(Spec(head_dim=head_dim, dtype="bfloat16", mask="causal"), "sm_90a", length=1024 if kv_len <= 1024 else 8192)
    together = -(-heads * batch // (2 if planned.attention.dealing.halves else 1))
    section = scalars(planned, Sizes(batch, 5, kv_len, heads, heads), {})["section"]
    full, rest = divmod(together, section)
    assert section <= 32
    assert not rest or section - rest <= full


def test_grids(planned: Program) -> None:
    tiles = -(-1000 // planned.attention.tile.block_m) * 16
    (kernel,) = planned.kernels
    assert block_count(kernel, SIZES, 132) == min(tiles, 132)
    assert block_count(kernel, SIZES, 7) == 7


CAPTURED = 9  # a stream


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Records what the driver is asked to launch."""
    seen: list[dict[str, Any]] = []

    def launch(config: Any, _: Any, arguments: int, __: int) -> tuple[Any]:
        at = ctypes.c_void_p.from_address(arguments).value
        assert at is not None
        assert at % 64 == 0
        blocks, threads = config.gridDimX, config.blockDimX
        seen.append({"at": at, "blocks": blocks, "threads": threads, "shared": config.sharedMemBytes, "stream": int(config.hStream)})
        seen[-1]["bytes"] = ctypes.string_at(at, seen_bytes)
        return (driver.CUresult.CUDA_SUCCESS,)

    seen_bytes = record_dtype(plan(SPEC, "sm_90a").arguments).itemsize
    monkeypatch.setattr(driver, "cuLaunchKernelEx", launch)
    monkeypatch.setattr(driver, "cuCtxGetCurrent", lambda: (0, 77))
    monkeypatch.setattr(dealing, "counter", lambda _, stream: 0x7000 + stream)
    monkeypatch.setattr(dealing, "halves", lambda _: 0x8000)
    monkeypatch.setattr(driver, "cuStreamIsCapturing", lambda stream: (0, int(stream == CAPTURED)))
    return seen


def prepare(planned: Program) -> executable.Launch:
    record, writes = executable.fill(planned, by_rows(), scalars(planned, SIZES, {"softcap": 30.0, "left": 7}))
    return executable.Launch(["f"], Device(0, "H", by_name("sm_90a"), 132, None, 77), record, writes, [99], planned)


def test_a_launch_takes_new_addresses_and_streams(planned: Program, launched: list[dict[str, Any]]) -> None:
    launch = prepare(planned)
    launch(ARRAYS, 5)
    launch((0x9000, *ARRAYS[1:]), 6)
    launch((0xA000, *ARRAYS[1:]), 6)
    dtype = record_dtype(planned.arguments)
    seen = [np.frombuffer(x["bytes"], dtype)[0] for x in launched]
    assert [x["q"].view(np.uint64)[0] for x in seen] == [0x1000, 0x9000, 0xA000]
    assert [x["counter"] for x in seen] == [0x7005, 0x7006, 0x7006]
    assert {int(x["lse"]) for x in seen} == {0x5000}
    assert [x["stream"] for x in launched] == [5, 6, 6]
    (part,) = planned.kernels
    assert (launched[0]["blocks"], launched[0]["threads"], launched[0]["shared"]) == (99, part.grid.threads, part.smem.bytes)


def test_what_the_driver_refuses_is_written_anew(planned: Program, launched: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    def tensor_map(_: Any, box: Any) -> Any:
        def at(address: int) -> bytes:
            if address == 0xBAD:
                raise BackendError("the driver refused a tensor map")
            return np.array([address, *box] + [0] * 13, np.uint64).tobytes()

        return at

    monkeypatch.setattr(tma, "Map", tensor_map)
    launch = prepare(planned)
    launch(ARRAYS, 5)
    with pytest.raises(BackendError):
        launch((0x9000, 0xBAD, *ARRAYS[2:]), 5)
    launch(ARRAYS, 5)
    assert launched[0] == launched[1]


def test_each_captured_launch_has_a_counter_of_its_own(
    planned: Program, launched: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = iter(range(0x8000, 0x9000, 8))
    monkeypatch.setattr(dealing, "zeros", lambda _: next(fresh))
    launch = prepare(planned)
    for stream in (5, CAPTURED, CAPTURED, 5):
        launch(ARRAYS, stream)
    monkeypatch.setattr(driver, "cuStreamIsCapturing", lambda _: (0, 0))
    launch(ARRAYS, CAPTURED)
    dtype = record_dtype(planned.arguments)
    counters = [np.frombuffer(x["bytes"], dtype)[0]["counter"] for x in launched]
    assert counters == [0x7005, 0x8000, 0x8008, 0x7005, 0x7000 + CAPTURED]


def test_threads_do_not_mix_their_addresses(planned: Program, launched: list[dict[str, Any]]) -> None:
    launch = prepare(planned)

    def run(i: int) -> None:
        for _ in range(50):
            launch((i << 16,) * len(ARRAYS), i)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    dtype = record_dtype(planned.arguments)
    for x in launched:
        record, i = np.frombuffer(x["bytes"], dtype)[0], x["stream"]
        assert {int(record[name].view(np.uint64)[0]) for name in "qkvo"} == {i << 16}
    assert len(launched) == 200


def test_a_thread_without_a_context_gets_one_before_maps_are_made(
    planned: Program, launched: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As PyTorch's threads of gradients: the driver refuses to make a tensor map without a context."""
    current = [0]

    @contextlib.contextmanager
    def active(_: Device) -> Iterator[None]:
        current.append(77)
        yield
        current.pop()

    launch, write = prepare(planned), executable.Launch._write
    monkeypatch.setattr(driver, "cuCtxGetCurrent", lambda: (0, current[-1]))
    monkeypatch.setattr(Device, "active", active)
    written: list[int] = []
    monkeypatch.setattr(executable.Launch, "_write", lambda self, wanted: (written.append(current[-1]), write(self, wanted))[1])
    launch(ARRAYS, 5)
    assert (written, current, len(launched)) == ([77], [0], 1)


@pytest.mark.usefixtures("launched")
def test_a_refused_launch_is_an_error(planned: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "cuLaunchKernelEx", lambda *_: (driver.CUresult.CUDA_ERROR_INVALID_VALUE,))
    with pytest.raises(BackendError, match="CUDA_ERROR_INVALID_VALUE"):
        prepare(planned)(ARRAYS, 5)


def test_a_module_is_loaded_once_a_device(planned: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[int] = []
    monkeypatch.setattr(executable, "_load", lambda _, target: loaded.append(target.ordinal) or f"function {target.ordinal}")
    source = Source("f", "", "sm_90a", ("forward",), ())
    made = executable.Executable(planned, source, Binary(b"", 1, 0, 0, "", 0.0, ""))
    for ordinal in (0, 1, 0, 1):
        target = SimpleNamespace(ordinal=ordinal)
        assert made.on(target) == f"function {ordinal}"  # type: ignore[arg-type]
    assert loaded == [0, 1]


def test_a_launch_asks_anew_for_the_counter_of_a_per_thread_stream(planned: Program, launched: list[dict[str, Any]]) -> None:
    launch = prepare(planned)
    launch(ARRAYS, 2)
    assert launch._stream == -1
    launch(ARRAYS, 5)
    assert launch._stream == 5
    assert [x["stream"] for x in launched] == [2, 5]
