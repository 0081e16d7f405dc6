"""`flashgen.jax` under JAX's transformations, where JAX is installed: results and gradients are those of jax.numpy."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")

jax.config.update("jax_num_cpu_devices", 2)  # before the first array

from jax import numpy as jnp  # noqa: E402
from jax.sharding import Mesh, PartitionSpec  # noqa: E402

import flashgen  # noqa: E402
from flashgen.jax import Attention, attention  # noqa: E402

GPU = jax.default_backend() == "gpu"
DTYPE, MOST = (jnp.bfloat16, 2e-2) if GPU else (jnp.float32, 2e-6)


def arrays(*more, seed=0):
    random = np.random.default_rng(seed)
    return [jnp.asarray(random.standard_normal((*more, 2, n, h, 16)), DTYPE) for n, h in ((9, 4), (12, 2), (12, 2))]


BIAS = jnp.asarray(np.random.default_rng(1).standard_normal((4, 12)), jnp.float32)


def biased(q, k, v, bias):
    return attention(q, k, v, "causal", score="s + bias[h, kv_idx]", bias=bias)


def plain(q, k, v, bias=0.0):
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    s = jnp.einsum("bqhd,bkhd->bhqk", q, jnp.repeat(k, 2, 2)) / 4 + jnp.reshape(jnp.broadcast_to(bias, (4, 12)), (4, 1, 12))
    p = jax.nn.softmax(jnp.where(jnp.tri(9, 12, 3, dtype=bool), s, -jnp.inf))
    return jnp.einsum("bhqk,bkhd->bqhd", p, jnp.repeat(v, 2, 2)).astype(DTYPE)


def close(found, want):
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        got, expected = (np.asarray(one, np.float64) for one in (x, y))
        assert np.linalg.norm(got - expected) <= MOST * np.linalg.norm(expected)


def gradients(function, count):
    return jax.grad(lambda *given: (function(*given).astype(jnp.float32) ** 2).sum(), tuple(range(count)))


def test_jit_gives_what_a_call_gives():
    given = arrays()
    found = jax.jit(attention)(*given)
    close(found, plain(*given))
    assert (np.asarray(found) == np.asarray(attention(*given))).all()
    o, lse = attention(*given, lse=True)
    assert (o.shape, lse.shape, lse.dtype) == ((2, 9, 4, 16), (2, 4, 9), jnp.float32)


def test_gradients():
    given = (*arrays(), BIAS)
    close(jax.jit(gradients(biased, 4))(*given), gradients(plain, 4)(*given))
    close(gradients(biased, 1)(*given), gradients(plain, 1)(*given))
    close(gradients(jax.checkpoint(biased), 3)(*given), gradients(plain, 3)(*given))


def test_the_gradient_of_lse():
    q, k, v = arrays()
    found = jax.grad(lambda k: attention(q, k, v, "full", lse=True)[1].sum())(k)

    def lse(k):
        s = jnp.einsum("bqhd,bkhd->bhqk", q.astype(jnp.float32), jnp.repeat(k.astype(jnp.float32), 2, 2)) / 4
        return jax.nn.logsumexp(s, -1).sum()

    close(found, jax.grad(lse)(k))


@pytest.mark.parametrize("axes", [(0, 0, 0, None), (0, None, 0, None), (0, 0, 0, 0)])
def test_vmap(axes):
    given = [x if axis == 0 else x[0] for x, axis in zip((*arrays(3), jnp.stack([BIAS, 2 * BIAS, -BIAS])), axes, strict=True)]
    close(jax.vmap(biased, axes)(*given), jax.vmap(plain, axes)(*given))
    close(jax.vmap(gradients(biased, 3), axes)(*given), jax.vmap(gradients(plain, 3), axes)(*given))
    close(gradients(jax.vmap(biased, axes), 4)(*given), gradients(jax.vmap(plain, axes), 4)(*given))
    close(jax.vmap(lambda *x: attention(*x[:3]), axes)(*given), jax.vmap(lambda *x: plain(*x[:3]), axes)(*given))


def test_shard_map():
    """Devices share the batch; the bias is whole on all, so that its gradient is a sum over them."""
    row, whole = PartitionSpec("row"), PartitionSpec()
    mesh = Mesh(np.array(jax.devices()[: 1 if GPU else 2]), ("row",))
    shared = jax.shard_map(biased, mesh=mesh, in_specs=(row, row, row, whole), out_specs=row)
    given = (*arrays(), BIAS)
    close(jax.jit(shared)(*given), plain(*given))
    close(jax.jit(gradients(shared, 4))(*given), gradients(plain, 4)(*given))


def test_shapes_need_no_device():
    given = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays()]
    assert jax.eval_shape(attention, *given).shape == (2, 9, 4, 16)


def test_a_spec():
    spec = {
        "dtype": jnp.dtype(DTYPE).name,
        "head_dim": 16,
        "score": "c * tanh(s / c)",
        "params": {"c": 5.0},
        "mask": "causal",
        "backward": True,
    }
    attn, given = Attention(spec), arrays()
    o, lse = jax.jit(lambda *x: attn(*x, c=3.0))(*given)
    want = flashgen.compile(spec)(*map(np.asarray, given), c=3.0)
    close((o, lse), tuple(jnp.asarray(x) for x in want))
    assert all(x.shape == y.shape for x, y in zip(gradients(lambda *x: attn(*x)[0], 3)(*given), given, strict=True))


def test_functions_and_traced_lengths():
    q, k, v = arrays()
    found = jax.jit(lambda n: attention(q, k, v, lambda _b, _h, _q, kv_idx: kv_idx < n[0]))(jnp.array([5], jnp.int32))
    close(found, attention(q, k, v, "prefix(5)"))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda q, k, v: attention(q, k[:, :, :1], v), "v has shape"),
        (lambda q, k, v: attention(q, k.astype(jnp.float16), v), "k is float16"),
        (lambda q, k, v: attention(q, k, v, "causl"), "did you mean 'causal'"),
        (lambda q, k, v: attention(q, k, v, reach=3), "unknown argument 'reach'"),
        (lambda q, k, v: attention(q, k, v, score="s * c", c=q.sum()), "c is a number that only the program knows"),
    ],
)
def test_mistakes_are_told_while_tracing(call, message):
    with pytest.raises(flashgen.FlashgenError, match=message):
        jax.eval_shape(call, *arrays())


def test_a_fault_of_a_call_is_an_error_of_jax_and_the_next_call_is_right():
    q, k, v = arrays()
    divided = jax.jit(lambda n: attention(q, k, v, "kv_idx // n == 0", n=n), static_argnums=0)
    with pytest.raises(jax.errors.JaxRuntimeError, match="n is 0"):
        jax.block_until_ready(divided(0))
    close(divided(20), attention(q, k, v, "full"))


def test_functions_of_jax_in_masks_and_scores():
    tanh = jnp.tanh

    def score(s, _b, _h, q_idx, kv_idx):
        return jnp.where(q_idx >= kv_idx, 2.0 * tanh(s / 2.0) + jax.nn.sigmoid(jnp.float32(1.0) * s), -jnp.inf)

    found = flashgen.trace(lambda _b, h, _q, kv_idx: jnp.logical_or(kv_idx > 0, h == 1), score)
    assert found.mask == "((kv_idx > 0) | (h == 1)) & (q_idx >= kv_idx)"
    assert found.score == "2.0 * tanh(s / 2.0) + sigmoid(1.0 * s)"
    with pytest.raises(flashgen.SpecError, match="no expression has convolve"):
        flashgen.trace(score=lambda s, _b, _h, _q, _k: jnp.convolve(s, s))
