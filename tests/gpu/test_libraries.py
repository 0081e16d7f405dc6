"""Arrays of every library, on a GPU machine: the result is of the same library, in its stream."""

from typing import Any

import numpy as np
import pytest

import flashgen
from flashgen.errors import CallError
from flashgen.runtime import arrays as runtime_arrays
from flashgen.spec import Spec
from tests.gpu.judge import BF16, down, judge, up
from tests.plan.agreement import arrays


def test_numpy_goes_over_and_back() -> None:
    q, k, v = arrays(BF16, 2, 4, 2, 100, 120)
    got = flashgen.compile(BF16)(q, k, v)
    assert [type(x) for x in got] == [np.ndarray, np.ndarray]
    judge(BF16, got, q, k, v)
    out = (np.zeros_like(q), np.zeros((2, 4, 100), np.float32))
    again = flashgen.compile(BF16, backend="gpu")(np.asfortranarray(q), k[:, ::-1][:, ::-1], v, out=out)
    assert again[0] is out[0]
    judge(BF16, again, q, k, v)


def test_torch() -> None:
    torch = pytest.importorskip("torch")
    q, k, v = arrays(BF16, 2, 4, 2, 100, 120)
    family = runtime_arrays.FAMILIES[torch.Tensor]
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
