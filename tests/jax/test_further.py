"""`attention` of JAX takes output and rotary, under jit too."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from jax import numpy as jnp  # noqa: E402

import flashgen.jax  # noqa: E402
from flashgen.runtime import device  # noqa: E402

DTYPE, MOST = (jnp.float32, 1e-4) if device.missing() else (jnp.bfloat16, 2e-2)  # on a GPU no backward of float32 is there
ROTARY = {"kind": "halves", "base": 10000.0}


def test_output_and_rotary_under_jit():
    q = np.random.default_rng(0).standard_normal((1, 8, 2, 16)).astype(np.float32)
    scales = np.float32([2.0, 0.5])

    def scaled(q, scales):
        return flashgen.jax.attention(q, q, q, output="o * scales[h]", scales=scales, rotary=ROTARY)

    expected = np.asarray(flashgen.jax.attention(q, q, q, rotary=ROTARY)) * scales[:, None]
    np.testing.assert_allclose(scaled(q, scales), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(jax.jit(scaled)(q, scales), expected, rtol=1e-5, atol=1e-6)


def test_gradients_of_weight_and_output_under_jit():
    """Those that JAX finds where the weight multiplies v and the output o."""
    random = np.random.default_rng(1)
    q, k, v, gate = (jnp.asarray(x, DTYPE) for x in random.standard_normal((4, 1, 8, 2, 16)))
    gate = gate.astype(np.float32)
    g = random.random((1, 2, 8)).astype(np.float32)

    def ours(q, k, v, g, gate):
        words = {"weight": "g[b, h, kv_idx]", "output": "o * sigmoid(gate[b, q_idx, h, v_idx])"}
        return flashgen.jax.attention(q, k, v, **words, g=g, gate=gate)

    def plain(q, k, v, g, gate):
        o = flashgen.jax.attention(q, k, (v * g.swapaxes(1, 2)[..., None]).astype(DTYPE))
        return (o * jax.nn.sigmoid(gate)).astype(DTYPE)

    def gradients(run):
        return jax.grad(lambda *given: (run(*given).astype(np.float32) ** 2).sum(), range(5))

    for found, want in zip(jax.jit(gradients(ours))(q, k, v, g, gate), gradients(plain)(q, k, v, g, gate), strict=True):
        got, expected = (np.asarray(x, np.float64) for x in (found, want))
        assert np.linalg.norm(got - expected) <= MOST * np.linalg.norm(expected)
