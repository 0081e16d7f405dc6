"""`attention` of JAX takes output and rotary, under jit too."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import flashgen.jax  # noqa: E402

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
    q, k, v, gate = random.standard_normal((4, 1, 8, 2, 16)).astype(np.float32)
    g = random.random((1, 2, 8)).astype(np.float32)

    def ours(q, k, v, g, gate):
        words = {"weight": "g[b, h, kv_idx]", "output": "o * sigmoid(gate[b, q_idx, h, v_idx])"}
        return flashgen.jax.attention(q, k, v, **words, g=g, gate=gate)

    def plain(q, k, v, g, gate):
        return flashgen.jax.attention(q, k, v * g.swapaxes(1, 2)[..., None]) * jax.nn.sigmoid(gate)

    def gradients(run):
        return jax.grad(lambda *given: (run(*given) ** 2).sum(), range(5))

    for found, want in zip(jax.jit(gradients(ours))(q, k, v, g, gate), gradients(plain)(q, k, v, g, gate), strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)
