"""Arguments of JAX's users that attention does not take are refused while JAX traces, by name, never by a crash or by zeros."""

import pytest

jax = pytest.importorskip("jax")

from jax import export  # noqa: E402
from jax import numpy as jnp  # noqa: E402

from flashgen import arch  # noqa: E402
from flashgen.errors import CallError, PlanError  # noqa: E402
from flashgen.jax import Attention, attention, call  # noqa: E402
from flashgen.jax.targets import FORWARD  # noqa: E402
from tests.jax.test_jax import BIAS, DTYPE, arrays, close, plain  # noqa: E402

SPEC = {
    "dtype": str(jnp.dtype(DTYPE)),
    "head_dim": 16,
    "mask": "causal",
    "score": "s + bias[h, kv_idx]",
    "tensors": {"bias": {"shape": ["hq", "kv_len"], "dtype": "float32"}},
    "backward": True,
}
REFUSED = {
    "k of other columns": (lambda q, k, v: attention(q, k[..., :8], v), r"k has shape \[2, 12, 2, 8\]"),
    "q of three axes": (lambda q, k, v: attention(q[0], k, v), "q has 3 axes"),
    "heads that do not divide": (lambda q, k, v: attention(q[:, :, :3], k, v), "q has 3 heads and k has 2"),
    "k of another dtype": (lambda q, k, v: attention(q, k.astype(jnp.float16), v), "k is float16"),
    "integers": (lambda q, k, v: attention(*(x.astype(jnp.int32) for x in (q, k, v))), "q is int32"),
    "no heads": (lambda q, k, v: attention(*(x[:, :, :0] for x in (q, k, v))), "q has 0 heads"),
    "no k": (lambda q, _k, v: attention(q, None, v), "k is a NoneType: expected an array"),
    "a word": (lambda q, _k, v: attention(q, "k", v), "k is a str: expected an array"),
    "a value that is short": (lambda q, k, v: attention(q, k, v, score="s + t[h]", t=jnp.ones(3)), r"t has shape \[3\]"),
    "a number of the program": (lambda q, k, v: attention(q, k, v, scale=q[0, 0, 0, 0]), "scale is a number that only the program knows"),
    "a scale that is none": (lambda q, k, v: attention(q, k, v, scale=[0.3]), r"scale is \[0.3\]: expected a number"),
    "a flag": (lambda q, k, v: attention(q, k, v, score="s * c", c=True), "c is True: expected a number"),
    "out": (lambda q, k, v: attention(q, k, v, out=q), "arrays of JAX are not written to"),
    "an argument of others": (lambda q, k, v: attention(q, k, v, is_causal=True), "that is the mask 'causal'"),
    "a mask as an array": (lambda q, k, v: attention(q, k, v, jnp.ones((9, 12), bool)), "expected an expression as text"),
    "a value that is none": (lambda q, k, v: Attention(SPEC)(q, k, v, bias=None), "bias is None"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_mistakes_are_told_by_name_while_jax_traces(what):
    call, message = REFUSED[what]
    with pytest.raises(CallError, match=message):
        jax.eval_shape(call, *arrays())
    with pytest.raises(CallError, match=message):
        jax.jit(call)(*arrays())


def test_values_without_gradients_are_refused_and_not_taken_for_zeros():
    q, k, v = arrays()
    with pytest.raises(CallError, match="bias is bfloat16, and is differentiated: gradients are float32"):
        jax.grad(lambda bias: attention(q, k, v, score="s + bias[h, kv_idx]", bias=bias).sum())(BIAS.astype(jnp.bfloat16))
    attn = Attention(SPEC)
    with pytest.raises(CallError, match="bias is differentiated, and the spec gives no gradient: declare it with grad: true"):
        jax.grad(lambda bias: attn(q, k, v, bias=bias)[0].sum())(BIAS)
    stopped = jax.grad(lambda q, bias: attn(q, k, v, bias=jax.lax.stop_gradient(bias))[0].astype(jnp.float32).sum(), (0, 1))(q, BIAS)
    close(stopped[0], jax.grad(lambda q: plain(q, k, v, BIAS).astype(jnp.float32).sum())(q))
    assert not stopped[1].any()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_that_no_kernel_has_are_refused_while_jax_traces(monkeypatch, dtype):
    monkeypatch.setattr(call, "default_arch", lambda: arch.by_name("sm_90a"))
    q = jnp.ones((1, 4, 2, 264 if dtype == "bfloat16" else 16), dtype)

    def loss(q):
        return attention(q, q, q).astype(jnp.float32).sum()

    assert jax.eval_shape(loss, q).shape == ()
    with pytest.raises(PlanError, match=r"the call is differentiated, and there is no backward for it: .*stop_gradient"):
        jax.eval_shape(jax.grad(loss), q)


def test_second_derivatives_and_forward_mode_are_refused():
    q, k, v = arrays()
    loss = lambda q: attention(q, k, v).astype(jnp.float32).sum()  # noqa: E731
    with pytest.raises(CallError, match="attention has no second derivatives"):
        jax.grad(lambda q: jax.grad(loss)(q).astype(jnp.float32).sum())(q)
    for forward in (lambda: jax.jvp(loss, (q,), (q,)), lambda: jax.jacfwd(loss)(q)):
        with pytest.raises(TypeError, match="forward-mode autodiff"):
            forward()


@pytest.mark.parametrize("which", range(3))
def test_one_of_them_may_be_differentiated(which):
    given = arrays()

    def loss(function):
        return lambda x: (function(*given[:which], x, *given[which + 1 :]).astype(jnp.float32) ** 2).sum()

    close(jax.jit(jax.grad(loss(attention)))(given[which]), jax.grad(loss(plain))(given[which]))


def test_no_elements_are_served():
    q, k, v = arrays()
    for given in ((q[:0], k[:0], v[:0]), (q[:, :0], k, v), (q, k[:, :0], v[:, :0])):
        assert jax.jit(attention)(*given).shape == given[0].shape


def test_an_exported_program_serves_sizes_that_are_symbols():
    shapes = export.symbolic_args_specs(tuple(arrays()), ("b, n, 4, 16", "b, m, 2, 16", "b, m, 2, 16"))
    both = jax.jit(lambda q, k, v: attention(q, k, v, lse=True))
    o, lse = jax.eval_shape(both, *shapes)
    assert (str(o.shape), str(lse.shape)) == ("(b, n, 4, 16)", "(b, 4, n)")
    program = export.export(both, disabled_checks=[export.DisabledSafetyCheck.custom_call(FORWARD)])(*shapes)
    for given in (arrays(), [x[:1, :5] for x in arrays()]):
        assert all((found == want).all() for found, want in zip(program.call(*given), both(*given), strict=True))


def test_calls_of_many_pairs_are_not_captured():
    few, many = (jnp.zeros((1, n, 1, 16), DTYPE) for n in (8192, 8193))
    for x, captured in ((few, True), (many, False)):
        assert ("flashgen_captured" in jax.jit(attention).lower(x, x, x).as_text()) == captured
    gradients = jax.jit(jax.grad(lambda x: attention(x, x, x).astype(jnp.float32).sum())).lower(few).as_text()
    assert "flashgen_attention_backward_1" in gradients


def test_loops_and_branches():
    q, k, v = arrays()
    once, more = attention(q, k, v), jax.lax.scan(lambda c, _: (attention(c, k, v), None), q, length=2)[0]
    assert (more == attention(once, k, v)).all()
    assert (jax.lax.cond(q[0, 0, 0, 0] < 9, lambda: attention(q, k, v), lambda: q) == once).all()
