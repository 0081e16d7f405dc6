"""Attention in JAX: under jit, grad, vmap and shard_map.

>>> from flashgen.jax import attention
>>> o = jax.jit(lambda q, k, v: attention(q, k, v, "causal"))(q, k, v)
"""

try:
    import jax  # noqa: F401
except ImportError as error:
    raise ImportError("flashgen.jax works in JAX, which is not here: pip install jax, or jax[cuda13] for a GPU") from error

from flashgen.jax.call import Attention, attention

__all__ = ["Attention", "attention"]
