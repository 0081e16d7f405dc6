"""`flashgen.torch` under autocast, checkpoint and vmap, and gradients of calls without a spec, where PyTorch is installed."""

import pytest

torch = pytest.importorskip("torch")

import flashgen  # noqa: E402
from flashgen.torch import attention  # noqa: E402
from tests.torch.test_compile import DEVICE, capped, compiled, same, tensors  # noqa: E402


def test_a_call_without_a_spec_has_gradients():
    q, k, v = (x.requires_grad_() for x in tensors())
    bias = torch.randn(4, 24, device=DEVICE, requires_grad=True)
    attend = lambda kernel: kernel(q, k, v, "full", score="s + bias[h, kv_idx]", bias=bias)  # noqa: E731
    weight = torch.randn(2, 20, 4, 16, generator=torch.Generator().manual_seed(1)).to(DEVICE)

    def plain(q, k, v, *_, bias, **__):
        s = torch.einsum("bqhd,bkhd->bhqk", q.float(), k.float().repeat_interleave(2, 2)) / 4 + bias[:, None]
        return torch.einsum("bhqk,bkhd->bqhd", s.softmax(-1), v.float().repeat_interleave(2, 2))

    found, want = (torch.autograd.grad((attend(f) * weight).sum(), (q, k, v, bias)) for f in (flashgen.attention, plain))
    for x, y in zip(found, want, strict=True):
        assert (x.float() - y.float()).norm() <= (1e-5 if DEVICE == "cpu" else 1e-2) * y.float().norm()


def test_the_gradient_of_lse_may_be_one_number():
    q, k, v = (x.requires_grad_() for x in tensors())
    attention(q, k, v, lse=True)[1].sum().backward()
    assert q.grad.abs().max() > 0
    assert v.grad.abs().max() == 0


def test_autocast_casts():
    q, k, v = (x.float() for x in tensors())
    with torch.autocast(DEVICE, torch.bfloat16):
        assert attention(q, k, v).dtype == torch.bfloat16


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant):
    slopes, found = torch.rand(4, device=DEVICE), []
    again = lambda *given: torch.utils.checkpoint.checkpoint(capped, *given, use_reentrant=reentrant)  # noqa: E731
    for function in (capped, again):
        leaves = [x.clone().requires_grad_() for x in (*tensors(), slopes)]
        function(*leaves, 20.0).float().square().sum().backward()
        found.append([x.grad for x in leaves])
    assert all(same(*pair) for pair in zip(*found, strict=True))


def _lengths(q, k, v, lens):
    return attention(q, k, v, "kv_idx < lens[b]", lens=lens)


def _bias(q, k, v, bias):
    return attention(q, k, v, score="s + bias[h]", bias=bias)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(
    ("function", "dims", "value"),
    [
        (lambda q, k, v: attention(q, k, v, lse=True)[1], (1, 0, None), ()),
        (_lengths, (0, 0, 0, None), (torch.tensor([5, 24], dtype=torch.int32),)),
        (_bias, (0, 0, 0, 0), (torch.arange(12.0).reshape(3, 4),)),
    ],
    ids=["one call", "sequences told apart", "a value each"],
)
def test_vmap_is_a_call_each(function, dims, value, gradients):
    given = [torch.stack(parts, dim or 0) for parts, dim in zip(zip(*(tensors() for _ in range(3)), strict=True), dims, strict=False)]
    given = [x if dim is not None else x[0] for x, dim in zip(given, dims, strict=False)]
    given = [x.to(DEVICE).requires_grad_(gradients and x.is_floating_point()) for x in (*given, *value)]
    found = torch.vmap(function, dims)(*given)
    want = torch.stack([function(*(x if dim is None else x.select(dim, i) for x, dim in zip(given, dims, strict=True))) for i in range(3)])
    assert torch.equal(found, want)
    if gradients:
        leaves = [x for x in given if x.requires_grad]
        for x, y in zip(*(torch.autograd.grad(o.sum(), leaves, allow_unused=True) for o in (found, want)), strict=True):
            assert (x is None and y is None) or same(x, y)


@pytest.mark.parametrize("where", [{"score": "c * tanh(s / c)"}, {"scale": "c"}], ids=["score", "scale"])
def test_a_number_that_is_learned_has_the_same_gradient_everywhere(where):
    q, k, v = tensors()

    def loss(c):
        values = {"scale": c} if "scale" in where else {"c": c}
        return attention(q, k, v, **{**where, **values}).float().square().sum()

    def gradient(function, c):
        c.requires_grad_()
        return torch.autograd.grad(function(c), c)[0]

    numbers = torch.tensor([0.5, 2.0], device=DEVICE)
    want = torch.stack([gradient(loss, c.clone()) for c in numbers])
    for found in (
        torch.stack([gradient(compiled(loss), c.clone()) for c in numbers]),
        torch.stack([torch.func.grad(loss)(c) for c in numbers]),
        torch.vmap(torch.func.grad(loss))(numbers),
    ):
        assert same(found, want)


def test_a_functionalized_call():
    q, k, v = tensors()
    assert same(torch.func.functionalize(lambda q: attention(q, k, v))(q), attention(q, k, v))
