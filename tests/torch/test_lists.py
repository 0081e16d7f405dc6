"""Gradients of PyTorch through lists of blocks, beside its own of the same mask."""

import numpy as np
import pytest

import flashgen

torch = pytest.importorskip("torch")

SPEC = {"dtype": "float32", "head_dim": 16, "mask": "causal", "backward": True, "blocks": {"m": 16, "n": 16, "lists": "idx"}}


def test_gradients_through_lists():
    random = np.random.default_rng(0)
    q, k, v, do = (torch.tensor(random.standard_normal((1, 64, 2, 16)), dtype=torch.float32) for _ in range(4))
    idx = torch.tensor([[[[0, -1], [0, 1], [1, 2], [3, 0]]]], dtype=torch.int32)
    blocks = torch.zeros(4, 4, dtype=torch.bool)
    for row, listed in enumerate(idx[0, 0].tolist()):
        blocks[row, listed[: listed.index(-1) if -1 in listed else None]] = True
    seen = blocks.repeat_interleave(16, 0).repeat_interleave(16, 1).tril()
    ours, theirs = ([x.clone().requires_grad_() for x in (q, k, v)] for _ in range(2))
    flashgen.compile(SPEC, backend="interpreter")(*ours, idx=idx)[0].backward(do)
    rows = (x.transpose(1, 2) for x in theirs)
    torch.nn.functional.scaled_dot_product_attention(*rows, attn_mask=seen).transpose(1, 2).backward(do)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-5)
