"""Gradients through a norm and a rotary embedding beside those of PyTorch's own operations."""

import pytest

import flashgen

torch = pytest.importorskip("torch")

SPEC = {
    "dtype": "float32",
    "head_dim": 16,
    "mask": "causal",
    "backward": True,
    "norm": {"query": "wq", "key": "wk"},
    "rotary": {"kind": "halves", "base": 100.0},
    "tensors": {"wq": {"shape": [16], "dtype": "float32", "grad": True}, "wk": {"shape": [16], "dtype": "bfloat16", "grad": True}},
}


def embedded(x, learned):
    """Rows [B, S, H, D] as a model writes it."""
    x = x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6) * learned.float()
    angle = (torch.arange(x.shape[1])[:, None] * 100.0 ** (-torch.arange(0, 16, 2) / 16))[:, None]
    left, right = x.chunk(2, -1)
    return torch.cat([left * angle.cos() - right * angle.sin(), right * angle.cos() + left * angle.sin()], -1)


def test_gradients_are_those_of_the_operations_one_by_one():
    """Those of learned columns have their dtype."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 9, 2, 16, requires_grad=True) for _ in range(3))
    wq, wk = torch.randn(16, requires_grad=True), torch.randn(16, dtype=torch.bfloat16, requires_grad=True)
    o, _ = flashgen.compile(SPEC, backend="interpreter")(q, k, v, wq=wq, wk=wk)
    rows = (x.transpose(1, 2) for x in (embedded(q, wq), embedded(k, wk), v))
    want = torch.nn.functional.scaled_dot_product_attention(*rows, is_causal=True).transpose(1, 2)
    do, leaves = torch.randn_like(o), (q, k, v, wq, wk)
    for x, y in zip(torch.autograd.grad(o, leaves, do), torch.autograd.grad(want, leaves, do), strict=True):
        assert x.dtype == y.dtype
        torch.testing.assert_close(x, y, atol=1e-5, rtol=1e-5 if x.dtype == torch.float32 else 1e-2)
