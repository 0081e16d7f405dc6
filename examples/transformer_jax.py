"""The small transformer of `transformer.py` in JAX, with its optimizer; its attention is left to the caller."""

from collections.abc import Callable
from pydoc_data.topics import topics

import jax
import numpy as np
from jax import numpy as jnp

GPU = jax.default_backend() == "gpu"
DTYPE = jnp.bfloat16 if GPU else jnp.float32
STEPS, BATCH, LENGTH = (300, 32, 512) if GPU else (20, 4, 64)
LAYERS, HEADS, HEAD_DIM = (6, 6, 64) if GPU else (2, 2, 32)
WIDTH = HEADS * HEAD_DIM
TEXT = np.frombuffer("".join(topics[name] for name in sorted(topics)).encode(), np.uint8).astype(np.int32)
SLOPES = 2.0 ** -jnp.arange(1.0, HEADS + 1)


def weights() -> dict:
    random = np.random.default_rng(0)

    def linear(n, m):
        return jnp.asarray(random.uniform(-1, 1, (n, m)) / n**0.5, jnp.float32)

    sizes = {"qkv": (1, 3), "out": (1, 1), "up": (1, 4), "down": (4, 1)}
    layers = [{"slopes": SLOPES, **{name: linear(WIDTH * n, WIDTH * m) for name, (n, m) in sizes.items()}} for _ in range(LAYERS)]
    return {"bytes": linear(256, WIDTH) * WIDTH**0.5, "layers": layers, "last": linear(WIDTH, 256)}


def norm(x):
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)


def losses(attend: Callable[..., jax.Array]) -> list[float]:
    """The loss of each step, nats a byte, with `attend(q, k, v, slopes)`, q, k, v, o [B, S, H, D]. All else is the same for every one."""

    def loss(model, batch):
        x = model["bytes"][batch[:, :-1]]
        for layer in model["layers"]:
            q, k, v = jnp.moveaxis((norm(x) @ layer["qkv"]).reshape(*x.shape[:2], 3, HEADS, HEAD_DIM).astype(DTYPE), 2, 0)
            x += attend(q, k, v, layer["slopes"]).reshape(x.shape).astype(x.dtype) @ layer["out"]
            x += jax.nn.gelu(norm(x) @ layer["up"]) @ layer["down"]
        log_p = jax.nn.log_softmax(norm(x) @ model["last"])
        return -jnp.take_along_axis(log_p, batch[:, 1:, None], -1).mean()

    @jax.jit
    def adam(model, first, second, count, batch):
        found, gradients = jax.value_and_grad(loss)(model, batch)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradients)
        second = jax.tree.map(lambda m, g: 0.999 * m + 0.001 * g * g, second, gradients)
        rate = 1e-3 * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
        return jax.tree.map(lambda w, m, n: w - rate * m / (jnp.sqrt(n) + 1e-8), model, first, second), first, second, found

    model, random, curve = weights(), np.random.default_rng(1), []
    first = second = jax.tree.map(jnp.zeros_like, model)
    for count in range(1, STEPS + 1):
        begin = random.integers(len(TEXT) - LENGTH - 1, size=(BATCH, 1))
        model, first, second, found = adam(model, first, second, float(count), TEXT[begin + np.arange(LENGTH + 1)])
        curve.append(float(found))
    return curve
