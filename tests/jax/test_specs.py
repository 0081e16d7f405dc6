"""Specs of all kinds in JAX: under jit, vmap and shard_map they give what a call gives, and tell where no gradient is."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from jax import numpy as jnp  # noqa: E402
from jax.sharding import Mesh, PartitionSpec  # noqa: E402

from flashgen.errors import CallError  # noqa: E402
from flashgen.jax import Attention  # noqa: E402
from tests.jax.test_jax import DTYPE, GPU, close  # noqa: E402

NAME = jnp.dtype(DTYPE).name
BASE = {"dtype": NAME, "head_dim": 16, "mask": "causal"}
DENSE, PACKED, PAGES = [(2, 20, 4, 16), (2, 24, 2, 16)], [(20, 4, 16), (24, 2, 16)], [(2, 1, 4, 16), (4, 16, 2, 16)]
COLUMNS = {name: {"shape": [16], "dtype": NAME} for name in ("wq", "wk")}
EMBEDDED = {"norm": {"eps": 1e-6, "query": "wq", "key": "wk"}, "rotary": {"kind": "halves", "base": 1e4}, "tensors": COLUMNS}
KINDS = {
    "packed": ({"layout": "thd", "backward": True}, PACKED, {"cu_seqlens_q": [0, 5, 8, 20], "cu_seqlens_k": [0, 9, 12, 24]}),
    "pages": ({"cache": {"page": 16}}, PAGES, {"kv_lens": [20, 30], "block_table": [[0, 1], [2, 3]]}),
    "blocks": ({"blocks": {"m": 16, "n": 16, "lists": "idx"}}, DENSE, {"idx": [[[[0, -1], [1, 0]]]]}),
    "norm and rotary": (EMBEDDED, DENSE, {"wq": (16,), "wk": (16,)}),
}


def made(kind):
    """An attention as a function, three q, k and v one behind the other, and the rest of its values."""
    more, (of_q, of_k), values = KINDS[kind]
    random, attention = np.random.default_rng(1), Attention(BASE | more)
    drawn = lambda shape: jnp.asarray(random.standard_normal(shape), DTYPE)  # noqa: E731
    read = {name: drawn(x) if isinstance(x, tuple) else jnp.asarray(x, jnp.int32) for name, x in values.items()}
    return lambda q, k, v, read: attention(q, k, v, **read), [drawn((2, *shape)) for shape in (of_q, of_k, of_k)], read


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_call_gives_it_gives_everywhere(kind):
    call, qkv, values = made(kind)
    want = jax.tree.map(lambda *x: jnp.stack(x), *(call(*(x[i] for x in qkv), values) for i in range(2)))
    close(jax.jit(jax.vmap(call, (0, 0, 0, None)))(*qkv, values), want)
    row, whole = PartitionSpec("row"), PartitionSpec()
    mesh = Mesh(np.array(jax.devices()[: 1 if GPU else 2]), ("row",))
    mapped = jax.vmap(call, (0, 0, 0, None))
    shared = jax.shard_map(mapped, mesh=mesh, in_specs=(row, row, row, whole), out_specs=row)
    close(jax.jit(shared)(*qkv, values), want)


def test_gradients_where_o_has_another_dtype():
    """They have the dtypes of q, k and v; that of o comes in its own."""
    attention = Attention(BASE | {"backward": True, "out_dtype": "float16"})
    q, k, v = (jnp.asarray(np.random.default_rng(2).standard_normal((1, 20, 2, 16)), DTYPE) for _ in range(3))
    usual = Attention(BASE | {"backward": True})
    loss = [lambda q, k, v, a=a: (a(q, k, v)[0].astype(jnp.float32) ** 2).sum() for a in (attention, usual)]
    assert attention(q, k, v)[0].dtype == jnp.float16
    found, want = (jax.jit(jax.grad(each, (0, 1, 2)))(q, k, v) for each in loss)
    assert all(x.dtype == DTYPE for x in found)
    assert all(np.linalg.norm(x - y) <= 2e-2 * np.linalg.norm(y) for x, y in zip(found, want, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_calls_or_are_refused(kind):
    call, qkv, values = made(kind)

    def loss(q, k, v):
        return (jax.tree.leaves(call(q, k, v, values))[0].astype(jnp.float32) ** 2).sum()

    gradient = jax.grad(loss, (0, 1, 2))
    given = [x[0] for x in qkv]
    if kind != "packed":
        with pytest.raises(CallError, match="has no backward: add the line backward: true to its spec"):
            gradient(*given)
        return
    close(jax.jit(gradient)(*given), gradient(*given))
    close([x[0] for x in jax.vmap(gradient)(*qkv)], list(gradient(*given)))
