"""`attention` of PyTorch takes output and rotary, under its compiler too."""

import pytest

torch = pytest.importorskip("torch")

import flashgen.torch  # noqa: E402
from flashgen.runtime import device  # noqa: E402

DTYPE, MOST = (torch.float32, 1e-4) if device.missing() else (torch.bfloat16, 2e-2)  # on a GPU no backward of float32 is there
ROTARY = {"kind": "halves", "base": 10000.0}


def test_output_and_rotary_under_a_compiler():
    q = torch.randn(1, 8, 2, 16)
    scales = torch.tensor([2.0, 0.5])

    def scaled(q):
        return flashgen.torch.attention(q, q, q, output="o * scales[h]", scales=scales, rotary=ROTARY)

    expected = flashgen.torch.attention(q, q, q, rotary=ROTARY) * scales[:, None]
    torch.testing.assert_close(scaled(q), expected)
    torch.testing.assert_close(torch.compile(scaled, fullgraph=True)(q), expected)


def test_gradients_of_weight_and_output_under_a_compiler():
    """Those that PyTorch finds where the weight multiplies v and the output o."""
    q, k, v = (torch.randn(1, 8, 2, 16).to(DTYPE) for _ in range(3))
    g, gate = torch.rand(1, 2, 8) + 0.5, torch.randn(1, 8, 2, 16)

    def ours(q, k, v, g, gate):
        words = {"weight": "g[b, h, kv_idx]", "output": "o * sigmoid(gate[b, q_idx, h, v_idx])"}
        return flashgen.torch.attention(q, k, v, **words, g=g, gate=gate)

    def plain(q, k, v, g, gate):
        o = flashgen.torch.attention(q, k, (v * g.transpose(1, 2)[..., None]).to(DTYPE))
        return (o * torch.sigmoid(gate)).to(DTYPE)

    def gradients(run):
        leaves = [x.clone().requires_grad_() for x in (q, k, v, g, gate)]
        run(*leaves).float().square().sum().backward()
        return [x.grad.float() for x in leaves]

    expected = gradients(plain)
    for run in (ours, torch.compile(ours, fullgraph=True)):
        for found, want in zip(gradients(run), expected, strict=True):
            assert (found - want).norm() <= MOST * want.norm()
