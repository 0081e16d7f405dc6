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
