"""A small model of Llama's shape with random weights, in NumPy or CuPy; its attention is left to the caller.

RMSNorm, rotary embedding with halves apart, heads in groups, SwiGLU; no dropout, no bias.
"""

from typing import Any

import numpy as np

try:
    import cupy

    xp: Any = cupy if cupy.cuda.runtime.getDeviceCount() else np
except Exception:  # no CuPy, or no GPU
    xp = np

GPU = xp is not np
LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = (8, 16, 4, 64, 4096) if GPU else (2, 4, 2, 16, 97)
WIDTH, POSITIONS = HEADS * HEAD_DIM, 1024
_ANGLES = np.outer(np.arange(POSITIONS), 10_000.0 ** -(np.arange(0, HEAD_DIM, 2) / HEAD_DIM))
COS, SIN = (xp.asarray(f(_ANGLES).astype(np.float32)) for f in (np.cos, np.sin))  # [positions, D / 2]


def turned(x, positions):
    """q or k [n, H, D] turned by the angles of their positions."""
    (left, right), cos, sin = xp.split(x, 2, -1), COS[positions][:, None], SIN[positions][:, None]
    return xp.concatenate([left * cos - right * sin, right * cos + left * sin], -1)


def normed(x):
    return x / xp.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)


class Llama:
    def __init__(self, seed=0):
        random = np.random.default_rng(seed)

        def weight(rows, columns):
            return xp.asarray((random.standard_normal((rows, columns)) / rows**0.5).astype(np.float32))

        self.embedding, self.head = weight(VOCABULARY, WIDTH) * VOCABULARY**0.5, weight(WIDTH, VOCABULARY)
        sizes = {"q": (WIDTH, WIDTH), "k": (WIDTH, KV_HEADS * HEAD_DIM), "v": (WIDTH, KV_HEADS * HEAD_DIM), "o": (WIDTH, WIDTH)}
        sizes |= {"gate": (WIDTH, 3 * WIDTH), "up": (WIDTH, 3 * WIDTH), "down": (3 * WIDTH, WIDTH)}
        self.layers = [{name: weight(*size) for name, size in sizes.items()} for _ in range(LAYERS)]

    def __call__(self, tokens, attend):
        """Logits [n, vocabulary] of tokens [n]; `attend(layer, q, k, v)`: o [n, Hq, D] of q [n, Hq, D] and k, v [n, Hk, D], not turned."""
        x = self.embedding[tokens]
        for number, layer in enumerate(self.layers):
            y = normed(x)
            q, k, v = ((y @ layer[name]).reshape(len(x), -1, HEAD_DIM) for name in "qkv")
            x = x + attend(number, q, k, v).reshape(x.shape) @ layer["o"]
            y = normed(x)
            gate = y @ layer["gate"]
            x = x + (gate / (1 + xp.exp(-gate)) * (y @ layer["up"])) @ layer["down"]
        return normed(x) @ self.head
