"""`attention` of PyTorch takes output and rotary, under its compiler too."""

import pytest

torch = pytest.importorskip("torch")

import flashgen.torch  # noqa: E402

ROTARY = {"kind": "halves", "base": 10000.0}


def test_output_and_rotary_under_a_compiler():
    q = torch.randn(1, 8, 2, 16)
    scales = torch.tensor([2.0, 0.5])

    def scaled(q):
        return flashgen.torch.attention(q, q, q, output="o * scales[h]", scales=scales, rotary=ROTARY)

    expected = flashgen.torch.attention(q, q, q, rotary=ROTARY) * scales[:, None]
    torch.testing.assert_close(scaled(q), expected)
    torch.testing.assert_close(torch.compile(scaled, fullgraph=True)(q), expected)
