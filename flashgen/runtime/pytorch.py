"""Tensors of PyTorch as arrays of a call. Imported when PyTorch is, which it never imports itself."""

import sys
from typing import Any

import numpy as np

from flashgen.dtypes import DTYPES, by_name
from flashgen.errors import BackendError, CallError
from flashgen.runtime.arrays import Key, Layout, name_of
from flashgen.runtime.autograd import INSIDE


class TorchFamily:
    """Tensors of PyTorch, on the host or on a GPU."""

    def __init__(self) -> None:
        self.torch = sys.modules["torch"]
        self.duals = self.torch.autograd.forward_ad
        self.dtypes = {name: getattr(self.torch, name) for name in DTYPES}
        # What a stream is, without a Stream object around it, which takes 2 us; compilers of PyTorch's own ask so.
        self.raw_stream = getattr(self.torch._C, "_cuda_getCurrentRawStream", None)

    def on_gpu(self, x: Any) -> bool:
        """True if a tensor lies on a GPU. Raises BackendError for one that is neither there nor on the host."""
        if not (x.is_cuda or x.is_cpu):
            raise BackendError(f"a tensor lies on {x.device}: flashgen serves cuda and cpu")
        return x.is_cuda  # type: ignore[no-any-return]

    def locate(self, x: Any) -> tuple[int, Key]:
        """The address of a tensor, and the key of its layout. Raises CallError where nothing may be read from its memory alone."""
        if x.requires_grad and self.torch.is_grad_enabled():
            fault = "a tensor requires a gradient, and this kernel has none"
            raise CallError(f"{fault}: add backward: true to its spec, call under torch.no_grad(), or pass x.detach()")
        if self.duals._current_level >= 0 and self.duals.unpack_dual(x).tangent is not None:
            raise CallError("a tensor has a tangent of forward mode, which attention has not: take backward(), torch.func.vjp or jacrev")
        if self.torch._C._get_tracing_state():
            raise CallError("torch.jit.trace sees no kernel, and would keep this result for all calls: call flashgen.torch.attention")
        if x.is_neg():
            raise CallError("a tensor stands for what its memory holds negated, as the imaginary part of a conjugate: pass x.resolve_neg()")
        try:
            pointer = x.data_ptr()
            return pointer, (x.shape, x.stride(), x.dtype, x.get_device() if self.on_gpu(x) else None, pointer & 15)
        except RuntimeError:
            raise CallError(self._without_memory(x)) from None

    def _without_memory(self, x: Any) -> str:
        """The reason why nothing of a tensor can be read."""
        if self.torch._C._functorch.unwrap_if_dead(x) is not x:
            return "a tensor is left of a transform of torch.func that is over: pass on what the transform returned"
        if self.torch._C._functorch.is_functorch_wrapped_tensor(x):
            return f"a tensor is {INSIDE}"
        if x.is_nested:
            return "a nested tensor is several: pass its values one behind the other, x.values(), to a spec with layout: thd"
        return f"a tensor of layout {x.layout} has no strides: pass a dense one, as x.to_dense() of a sparse tensor"

    def layout(self, key: Key) -> Layout:
        """The layout that a key stands for."""
        shape, strides, dtype, device, offset = key
        return Layout(tuple(shape), strides, name_of(dtype), device, offset)

    def empty(self, shape: tuple[int, ...], dtype: str, beside: Any) -> Any:
        """A new array on the GPU of another one."""
        return beside.new_empty(shape, dtype=self.dtypes[dtype])

    scratch = empty  # while a graph captures, PyTorch takes memory from a pool that the graph keeps

    def pointer(self, x: Any) -> int:
        """The address of an array that the library made."""
        return int(x.data_ptr())

    def stream(self, beside: Any) -> int:
        """The current stream of the GPU of a tensor."""
        device = beside.get_device()
        return int(self.raw_stream(device) if self.raw_stream else self.torch.cuda.current_stream(device).cuda_stream)

    def to_numpy(self, x: Any) -> np.ndarray[Any, Any]:
        """A view of a tensor on the host."""
        if x.dtype == self.torch.bfloat16:
            return np.asarray(x.detach().view(self.torch.int16).numpy()).view(by_name("bfloat16").numpy)
        return np.asarray(x.detach().numpy())

    def from_numpy(self, x: np.ndarray[Any, Any]) -> Any:
        """A tensor in the memory of an array of NumPy."""
        if x.dtype.name == "bfloat16":
            return self.torch.from_numpy(x.view(np.int16)).view(self.torch.bfloat16)
        return self.torch.from_numpy(x)


def kinds() -> tuple[type, ...]:
    """The types of tensors that are nothing but numbers."""
    torch = sys.modules["torch"]
    return torch.Tensor, torch.nn.Parameter
