"""Calls of PyTorch in CUDA graphs, where there is a GPU: of steps of training, and those that torch.compile captures."""

import pytest

torch = pytest.importorskip("torch")

from flashgen.torch import attention  # noqa: E402
from tests.torch.test_compile import DEVICE, capped, same, tensors  # noqa: E402

pytestmark = pytest.mark.skipif(DEVICE == "cpu", reason="a CUDA graph needs a GPU")


def gradients(function, given):
    o = function(*given)
    return [o, *torch.autograd.grad(o.float().square().sum(), given)]


def test_a_captured_step_of_training_serves_other_numbers():
    def step(q, k, v, slopes):
        return capped(q, k, v, slopes, 20.0)

    def drawn(scale):
        return tuple(x.requires_grad_() for x in (*(scale * x for x in tensors()), scale * torch.rand(4, device=DEVICE)))

    captured = torch.cuda.make_graphed_callables(step, drawn(1.0))
    for scale in (0.5, 2.0):
        given = drawn(scale)
        assert all(same(*pair) for pair in zip(gradients(captured, given), gradients(step, given), strict=True))


def test_torch_compile_may_capture_calls():
    torch._dynamo.reset()
    function = torch.compile(attention, fullgraph=True, mode="reduce-overhead")
    for i in range(4):  # two to warm up and capture
        given = [(x + i).requires_grad_() for x in tensors()]
        torch.compiler.cudagraph_mark_step_begin()
        assert all(same(*pair) for pair in zip(gradients(function, given), gradients(attention, given), strict=True))
