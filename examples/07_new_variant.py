"""A new variant: written down, checked against NumPy, planned for Hopper. Nothing in flashgen knows of it.

Memory that fades: keys in the same chunk count fully, older ones lose a logarithmic penalty with a strength a head, and of what is
older than `reach` only every `stride`-th key is seen.
"""

import numpy as np

import flashgen
from flashgen.plan import plan

FADING = """
name: fading
dtype: float32
head_dim: 64
score: s - where(q_idx // chunk_size == kv_idx // chunk_size, 0.0, strength[h] * log(1.0 + q_idx - kv_idx))
mask: causal & ((kv_idx >= q_idx - reach) | (kv_idx % stride == 0))
params: {chunk_size: 64, reach: 256, stride: 16}
tensors:
  strength: {shape: [hq], dtype: float32}
"""


def by_hand(q, k, v, strength, chunk_size=64, reach=256, stride=16):
    i, j = np.arange(q.shape[1])[:, None], np.arange(k.shape[1])
    s = np.einsum("bihd,bjhd->bhij", q, k) / np.sqrt(q.shape[-1])
    distance = np.log(1.0 + np.maximum(i - j, 0))
    s = s - np.where(i // chunk_size == j // chunk_size, 0, strength[:, None, None] * distance)
    s = np.where((j <= i) & ((j >= i - reach) | (j % stride == 0)), s, -np.inf)
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    return np.einsum("bhij,bjhd->bihd", p / p.sum(axis=-1, keepdims=True), v)


def main() -> None:
    spec = flashgen.loads(FADING)
    random = np.random.default_rng(0)
    q, k, v = random.standard_normal((3, 2, 700, 4, 64), np.float32)
    strength = np.float32([0.0, 0.1, 0.5, 2.0])
    o = flashgen.compile(spec)(q, k, v, strength=strength)
    print(f"differs from NumPy by {abs(o - by_hand(q, k, v, strength)).max():.1e}")
    for name, line in plan(flashgen.Spec(**spec.to_json() | {"dtype": "bfloat16"}), "sm_90a").decision.reasons:
        print(f"{name}: {line}")


if __name__ == "__main__":
    main()
