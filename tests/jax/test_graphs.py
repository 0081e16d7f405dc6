"""Programs of JAX whose calls XLA captures in a CUDA graph, which it calls a command buffer, where there is a GPU."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from jax import numpy as jnp  # noqa: E402

from flashgen.jax import attention, targets  # noqa: E402
from tests.jax.test_jax import GPU, close, gradients  # noqa: E402

pytestmark = pytest.mark.skipif(not GPU, reason="a CUDA graph needs a GPU")
CAPTURE, NEVER = {"xla_gpu_graph_min_graph_size": 1}, {"xla_gpu_graph_min_graph_size": 1 << 20}


def layers(q, k, v):
    for _ in range(3):
        q = attention(jnp.tanh(q), k, v)
    return q


@pytest.fixture
def seen(monkeypatch):
    """A list of what calls find: whether their stream is captured."""
    found, real = [], targets.captured
    monkeypatch.setattr(targets, "captured", lambda stream: found.append(real(stream)) or found[-1])
    return found


def drawn(seed, q_len, kv_len):
    random = np.random.default_rng(seed)
    return [jnp.asarray(random.standard_normal((1, n, h, 64)), jnp.bfloat16) for n, h in ((q_len, 4), (kv_len, 2), (kv_len, 2))]


@pytest.mark.parametrize(
    ("function", "q_len", "kv_len"),
    [(layers, 300, 300), (layers, 1, 9000), (gradients(layers, 3), 300, 300)],
    ids=["", "keys in shares", "gradients"],
)
def test_captured_calls_are_right_at_each_replay(seen, function, q_len, kv_len):
    plain, captured = (jax.jit(lambda *x, f=function: f(*x), compiler_options=options) for options in (NEVER, CAPTURE))
    for seed in range(4):  # of them XLA may capture the first, or others at other addresses
        given = drawn(seed, q_len, kv_len)
        want = plain(*given)
        close(captured(*given), want)
        close(captured(*given), want)
    assert True in seen
