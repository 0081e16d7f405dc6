"""A transformer learns in JAX with flashgen's attention, and with JAX's own: two curves of one loss. Needs JAX, and runs on a CPU too.

`python examples/12_training_in_jax.py curves.png` draws them, where matplotlib is installed. As in `11_training.py` the attention is
ALiBi (arXiv:2108.12409) with slopes that are learned. Inside `jax.jit` a call of flashgen is one of XLA's.
"""

import sys

import jax
from jax import numpy as jnp
from transformer_jax import STEPS, losses

from flashgen.jax import attention


def ours(q, k, v, slopes):
    return attention(q, k, v, "causal", score="s + slopes[h] * (kv_idx - q_idx)", slopes=slopes)


def standard(q, k, v, slopes):
    place = jnp.arange(q.shape[1])
    bias = slopes[:, None, None] * (place - place[:, None])
    return jax.nn.dot_product_attention(q, k, v, bias[None].astype(q.dtype), is_causal=True)


curves = {"flashgen": losses(ours), "JAX": losses(standard)}
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
