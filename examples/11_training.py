"""A transformer learns with flashgen's attention, and with PyTorch's own: two curves of one loss. Needs PyTorch, and runs on a CPU too.

`python examples/11_training.py curves.png` draws them, where matplotlib is installed. The attention is ALiBi (arXiv:2108.12409) with slopes
that are learned: the spec says `grad: true`. PyTorch takes the same as a bias of the size of the scores.
"""

import math
import sys

import torch
from transformer import DTYPE, HEAD_DIM, HEADS, STEPS, losses

from flashgen.torch import Attention

SPEC = {
    "dtype": str(DTYPE).removeprefix("torch."),
    "head_dim": HEAD_DIM,
    "score": "s + slopes[h] * (kv_idx - q_idx)",
    "mask": "causal",
    "tensors": {"slopes": {"shape": ["hq"], "dtype": "float32", "grad": True}},
    "backward": True,
}
SLOPES = 2.0 ** -torch.arange(1.0, HEADS + 1)


class Ours(Attention):
    def forward(self, q, k, v):
        o, _lse = super().forward(q, k, v)
        return o


class Sdpa(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.slopes = torch.nn.Parameter(SLOPES.clone())

    def forward(self, q, k, v):
        place = torch.arange(q.shape[1], device=q.device)
        bias = self.slopes[:, None, None] * (place - place[:, None])
        bias = torch.where(place > place[:, None], -math.inf, bias).to(q.dtype)[None]
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2)


curves = {"flashgen": losses(lambda: Ours(SPEC, slopes=SLOPES.clone())), "SDPA": losses(Sdpa)}
for step in range(0, STEPS, STEPS // 10):
    print(f"step {step:4}  " + "  ".join(f"{name} {curve[step]:.4f}" for name, curve in curves.items()))
ends = [sum(curve[-5:]) / 5 for curve in curves.values()]
print(f"the last five steps: {ends[0]:.4f} and {ends[1]:.4f} nats a byte, {abs(ends[0] - ends[1]):.1e} apart")

if sys.argv[-1].endswith(".png"):
    from matplotlib import pyplot

    for (name, curve), style in zip(curves.items(), ("-", ":"), strict=True):
        pyplot.plot(curve, style, label=name)
    pyplot.xlabel("step")
    pyplot.ylabel("loss, nats a byte")
    pyplot.legend()
    pyplot.savefig(sys.argv[-1], dpi=120, bbox_inches="tight")
