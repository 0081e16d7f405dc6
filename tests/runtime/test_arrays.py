"""Arrays are found where they lie, library by library.

CuPy arrays at made-up addresses stand for those on a GPU: only their descriptions are read.
"""

import ctypes
import math
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flashgen
from flashgen.dtypes import by_name
from flashgen.errors import CallError
from flashgen.runtime import arrays
from flashgen.runtime.arrays import Layout

BFLOAT16 = by_name("bfloat16").numpy


def on_gpu(shape: tuple[int, ...], dtype: Any, address: int = 1 << 40, device: int = 0) -> Any:
    cupy = pytest.importorskip("cupy")
    memory = cupy.cuda.UnownedMemory(address, max(1, math.prod(shape)) * np.dtype(dtype).itemsize, None, device)
    return cupy.ndarray(shape, dtype, memptr=cupy.cuda.MemoryPointer(memory, 0))


def layout(x: Any, name: str) -> Layout:
    return arrays.liken(x, name).layout


def address(x: Any) -> int:
    return arrays.FAMILIES[type(x)].locate(x)[0]


def test_numpy() -> None:
    x = np.zeros((2, 5, 3, 8), BFLOAT16)
    y = x.swapaxes(1, 2)[..., ::2]
    assert address(y) == x.ctypes.data
    assert layout(y, "q") == ((2, 3, 5, 4), (120, 8, 24, 2), "bfloat16", None, x.ctypes.data % 16)


def test_cupy() -> None:
    x = on_gpu((2, 5, 3, 8), BFLOAT16, device=1)
    assert (address(x[:, 1:]), layout(x[:, 1:], "k")) == ((1 << 40) + 48, Layout((2, 4, 3, 8), (120, 24, 8, 1), "bfloat16", 1, 0))
    assert layout(x[..., 1:], "k").offset == 2


def test_equal_layouts_have_equal_keys_and_others_do_not() -> None:
    family = arrays.NUMPY
    x = np.zeros((4, 64), np.float32)
    assert family.locate(x)[1] == family.locate(np.frombuffer(memoryview(x), np.float32).reshape(4, 64))[1]
    for other in (x[:, ::2], x[:3], x.astype(np.float16), x.reshape(-1)[1:]):
        assert family.locate(other)[1] != family.locate(x)[1]


def test_negative_and_zero_strides() -> None:
    x = np.broadcast_to(np.zeros((1, 6, 1, 8), np.float16), (2, 6, 3, 8))[:, ::-1]
    assert layout(x, "v").strides == (0, -8, 0, 1)


def test_strides_that_are_no_whole_elements_are_refused() -> None:
    x = np.zeros((4, 8), [("a", "f4"), ("b", "u1")])["a"]
    with pytest.raises(CallError, match=r"^bias: strides of \(40, 5\) bytes are not whole elements of 4: pass a contiguous copy"):
        layout(x, "bias")


@pytest.mark.parametrize("x", [[1.0], 3, None, "q", object()])
def test_what_is_no_array_is_named(x: Any) -> None:
    with pytest.raises(CallError, match=f"^k is a {type(x).__name__}, not an array: NumPy, CuPy, PyTorch and JAX arrays are"):
        arrays.adopt(x, "k")


class OnlyDlpack:
    def __init__(self, x: Any):
        self.x = x

    def __dlpack__(self, **options: Any) -> Any:
        return self.x.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def test_dlpack_shares_the_memory() -> None:
    x = np.arange(6, dtype=np.float32)
    adopted = arrays.adopt(OnlyDlpack(x), "q")
    assert address(adopted) == x.ctypes.data


class Bfloat16(OnlyDlpack):
    """Says for NumPy what it cannot say over DLPack: 16 bits are changed from unsigned integers to bfloat16."""

    def __dlpack__(self, **options: Any) -> Any:
        capsule = self.x.view(np.uint16).__dlpack__(**options)
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        ctypes.c_uint8.from_address(pointer(capsule, b"dltensor") + 20).value = 4
        return capsule


def test_bfloat16_over_dlpack_alone() -> None:
    x = np.arange(24).astype(BFLOAT16).reshape(2, 3, 4)[:, ::-1]
    adopted = arrays.adopt(Bfloat16(x), "q")
    assert (address(adopted), layout(adopted, "q")) == (address(x), layout(x, "q"))
    np.testing.assert_array_equal(adopted, x)


def test_what_dlpack_has_and_numpy_has_not_is_refused() -> None:
    class Gone(OnlyDlpack):
        def __dlpack__(self, **options: Any) -> Any:
            raise BufferError("it was donated")

    with pytest.raises(CallError, match=r"^k: its DLPack cannot be read \(it was donated\): pass an array of NumPy"):
        arrays.adopt(Gone(np.zeros(3)), "k")


def test_arrays_with_a_meaning_of_their_own_are_refused_by_name() -> None:
    class Metres(np.ndarray):
        pass

    x = np.zeros((1, 2, 3, 4), np.float32)
    for other in (np.ma.masked_array(x, x == 0), x.view(Metres)):
        with pytest.raises(CallError, match=f"^v is a {type(other).__name__}, .* which no kernel knows: pass the plain numbers"):
            arrays.adopt(other, "v")


@pytest.fixture
def pytorch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stand-in with the types of PyTorch that matter here."""

    class Tensor:
        requires_grad = is_cuda = is_nested = negated = False
        is_cpu, layout, shape, dtype = True, "strided", (1, 2, 3, 4), "torch.float32"

        def is_neg(self) -> bool:
            return self.negated

        def data_ptr(self) -> int:
            if self.layout != "strided":
                raise RuntimeError("no storage")
            return 64

        def stride(self) -> tuple[int, ...]:
            return (24, 12, 4, 1)

        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

    class Parameter(Tensor):
        pass

    torch = ModuleType("torch")
    alive = lambda x: None if x.layout == "left" else x  # noqa: E731
    transforms = SimpleNamespace(is_functorch_wrapped_tensor=lambda x: x.layout == "wrapped", unwrap_if_dead=alive)
    inside = SimpleNamespace(_functorch=transforms, _get_tracing_state=lambda: None)
    parts: dict[str, Any] = {"Tensor": Tensor, "nn": SimpleNamespace(Parameter=Parameter), "_C": inside}
    forward = SimpleNamespace(_current_level=-1)
    parts |= {"is_grad_enabled": lambda: True, "autograd": SimpleNamespace(forward_ad=forward)}
    for name, value in {**parts, **{dtype: f"torch.{dtype}" for dtype in arrays.DTYPES}}.items():
        setattr(torch, name, value)
    monkeypatch.setitem(sys.modules, "torch", torch)
    return torch


def test_tensors_that_are_nothing_but_numbers(pytorch: Any) -> None:
    for kind in (pytorch.Tensor, pytorch.nn.Parameter):
        x = kind()
        assert arrays.adopt(x, "q") is x
        assert layout(x, "q") == Layout((1, 2, 3, 4), (24, 12, 4, 1), "float32", None, 0)


@pytest.mark.parametrize("name", ["DTensor", "MaskedTensor", "NestedTensor", "FakeTensor", "Metres"])
def test_tensors_with_a_meaning_of_their_own_are_refused_by_name(pytorch: Any, name: str) -> None:
    x = type(name, (pytorch.nn.Parameter,), {})()
    with pytest.raises(CallError, match=rf"^k is a {name}, an array of torch .* which no kernel knows: .* k.as_subclass\(torch.Tensor\)"):
        arrays.adopt(x, "k")
    with pytest.raises(CallError, match=f"^k is a {name}"):
        flashgen.compile({"head_dim": 4, "dtype": "float32"}, "host")(pytorch.Tensor(), x, pytorch.Tensor())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"negated": True}, "^v: a tensor stands for .* x.resolve_neg"),
        ({"layout": "sparse_coo"}, "^v: a tensor of layout sparse_coo"),
        ({"layout": "wrapped"}, "^v: a tensor is inside a transform"),
        ({"layout": "left"}, "^v: a tensor is left of a transform"),
        ({"layout": "ragged", "is_nested": True}, "^v: a nested tensor is several"),
    ],
)
def test_tensors_whose_memory_says_something_else(pytorch: Any, change: dict[str, Any], message: str) -> None:
    x = pytorch.Tensor()
    vars(x).update(change)
    with pytest.raises(CallError, match=message):
        layout(x, "v")


def test_a_file_in_memory_is_an_array(tmp_path: Path) -> None:
    x = np.memmap(tmp_path / "x", np.float32, "w+", shape=(1, 2, 3, 4))
    assert arrays.adopt(x, "q") is x


def test_arrays_of_a_family_are_adopted_as_they_are() -> None:
    x = np.zeros(3)
    assert arrays.adopt(x, "q") is x


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(-40, 40)), min_size=1, max_size=4),
    st.sampled_from(["float32", "bfloat16"]),
    st.integers(0, 7),
)
def test_rows_are_aligned_to_what_row_alignment_says(axes: list[tuple[int, int]], dtype: str, offset: int) -> None:
    size = by_name(dtype).bytes
    x = Layout(tuple(n for n, _ in axes), tuple(s for _, s in axes), dtype, 0, offset * size % 16)
    unit = x.row_alignment
    assert unit in (size, *(a for a in (4, 8, 16) if a >= size))
    dense = x.shape[-1] <= 1 or x.strides[-1] == 1
    for index in np.ndindex(*x.shape[:-1]):
        at = x.offset + size * sum(i * s for i, s in zip(index, x.strides[:-1], strict=True))
        assert at % (unit if dense else size) == 0


@given(st.lists(st.integers(1, 4), max_size=4), st.permutations(range(4)))
def test_contiguous_is_numpy_s_notion(shape: list[int], order: list[int]) -> None:
    x = np.zeros((*shape, *[1] * (4 - len(shape))), np.float32).transpose(order)
    assert layout(x, "lse").contiguous == x.flags.c_contiguous


def test_torch_on_the_host() -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(24, dtype=torch.bfloat16).reshape(1, 2, 3, 4)
    family = arrays.FAMILIES[type(x)]
    assert layout(x.transpose(1, 2), "q")[:4] == ((1, 3, 2, 4), (24, 4, 12, 1), "bfloat16", None)
    shared = family.to_numpy(x)
    assert shared.ctypes.data == x.data_ptr()
    assert torch.equal(family.from_numpy(shared), x)
    with pytest.raises(CallError, match=r"no_grad"):
        layout(torch.zeros(3, requires_grad=True), "q")


def test_jax_on_the_host() -> None:
    jax = pytest.importorskip("jax")
    x = jax.numpy.arange(24, dtype=jax.numpy.bfloat16).reshape(1, 2, 3, 4)
    adopted = arrays.adopt(x, "q")
    assert layout(adopted, "q").dtype == "bfloat16"
    assert isinstance(arrays.give_back(np.asarray(adopted), x), jax.Array)


def test_addresses_are_where_the_bytes_are() -> None:
    x = np.arange(8, dtype=np.int32)
    assert ctypes.c_int.from_address(address(x[5:])).value == 5
