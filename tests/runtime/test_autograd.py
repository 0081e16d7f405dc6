"""Gradients in PyTorch, where it is installed: what its graph gives are those of the float64 reference."""

import numpy as np
import pytest

import flashgen
from flashgen import arch, attend
from flashgen.errors import CallError, PlanError
from flashgen.expr.meaning.reference_backward import backward

torch = pytest.importorskip("torch")

CAPPED = {
    "head_dim": 64,
    "dtype": "bfloat16",
    "mask": "causal",
    "score": "c * tanh(s / c) + bias[h, kv_idx]",
    "params": {"c": {"default": 5.0, "grad": True}},
    "tensors": {"bias": {"shape": ["hq", "kv_len"], "dtype": "float32", "grad": True}},
    "backward": True,
}


DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def tensors(device=DEVICE):
    random = torch.Generator().manual_seed(3)
    shapes = {"q": (2, 100, 4, 64), "k": (2, 130, 2, 64), "v": (2, 130, 2, 64), "do": (2, 100, 4, 64)}
    found = {name: torch.randn(shape, generator=random).to(device, torch.bfloat16) for name, shape in shapes.items()}
    return found | {"bias": torch.randn((4, 130), generator=random).to(device), "c": torch.tensor(5.0, device=device)}


def close(found, want, most=2e-2):
    found, want = np.asarray(found.detach().float().cpu(), np.float64), np.asarray(want, np.float64)
    assert np.linalg.norm(found - want) <= most * np.linalg.norm(want)


@pytest.mark.parametrize("of_lse", [False, True])
def test_gradients_of_a_graph(of_lse):
    attn, given = flashgen.compile(CAPPED), tensors()
    do = given.pop("do")
    leaves = {name: x.clone().requires_grad_() for name, x in given.items()}
    o, lse = attn(leaves["q"], leaves["k"], leaves["v"], bias=leaves["bias"], c=leaves["c"])
    dlse = torch.sin(torch.arange(lse.numel(), device=DEVICE).float()).reshape(lse.shape)
    ((o * do).float().sum() + (lse * dlse).sum() * of_lse).backward()
    q, k, v, bias = (given[name].float().cpu().numpy().astype(np.float64) for name in ("q", "k", "v", "bias"))
    want = backward(attn.spec, q, k, v, do.float().cpu().numpy(), dlse.cpu().numpy() if of_lse else None, bias=bias, c=5.0)
    for name, x in {"q": want.q, "k": want.k, "v": want.v, **want.values}.items():
        assert leaves[name].grad.dtype == given[name].dtype
        close(leaves[name].grad, x)


def test_gradients_through_weight_and_output():
    """The graph keeps o_raw, which is a constant to it."""
    words = {"weight": "sigmoid(bias[h, kv_idx])", "output": "c * tanh(o / c)", "score": "s"}
    attn, given = flashgen.compile(CAPPED | words), tensors()
    do = given.pop("do")
    leaves = {name: x.clone().requires_grad_() for name, x in given.items()}
    o, lse, o_raw = attn(leaves["q"], leaves["k"], leaves["v"], bias=leaves["bias"], c=leaves["c"])
    assert (lse.requires_grad, o_raw.requires_grad) == (True, False)
    (o * do).float().sum().backward()
    q, k, v, bias = (given[name].float().cpu().numpy().astype(np.float64) for name in ("q", "k", "v", "bias"))
    want = backward(attn.spec, q, k, v, do.float().cpu().numpy(), bias=bias, c=5.0)
    for name, x in {"q": want.q, "k": want.k, "v": want.v, **want.values}.items():
        close(leaves[name].grad, x)


def test_what_has_no_gradient_is_refused():
    attn, given = flashgen.compile(CAPPED | {"tensors": {"bias": {"shape": ["hq", "kv_len"], "dtype": "float32"}}}), tensors()
    with pytest.raises(CallError, match="bias requires a gradient, and the spec gives none"):
        attn(given["q"], given["k"], given["v"], bias=given["bias"].requires_grad_(), c=3.0)
    with pytest.raises(CallError, match="leave out out"):
        attn(given["q"].requires_grad_(), given["k"], given["v"], bias=given["bias"].detach(), out=(given["do"], None))


def test_what_no_kernel_differentiates_is_refused_at_the_forward(monkeypatch):
    q, k, v = (x.float() for name, x in tensors("cpu").items() if name in ("q", "k", "v"))
    monkeypatch.setattr(attend, "default_arch", lambda: arch.by_name("sm_90a"))
    for _ in range(2):  # nor does a second call get by
        with pytest.raises(PlanError, match=r"no backward for it: dtype is float32.*no_grad"):
            flashgen.attention(q.requires_grad_(), k, v, "q_idx * kv_idx < 4321")
    with torch.no_grad():
        assert flashgen.attention(q, k, v, "q_idx * kv_idx < 4321").shape == q.shape


@pytest.mark.parametrize(("dtype", "out_dtype"), [("bfloat16", "float32"), ("float16", "bfloat16")])
def test_o_of_another_dtype(dtype, out_dtype):
    """Its gradient has that dtype, those of q, k and v have theirs."""
    attn, given = flashgen.compile({"head_dim": 64, "dtype": dtype, "out_dtype": out_dtype, "mask": "causal", "backward": True}), tensors()
    q, k, v = (given[name].to(getattr(torch, dtype)).requires_grad_() for name in ("q", "k", "v"))
    do = given["do"].to(getattr(torch, out_dtype))
    o, lse = attn(q, k, v)
    assert o.dtype == do.dtype
    ((o * do).float().sum() + lse.sum()).backward()
    wide = (x.detach().float().cpu().numpy().astype(np.float64) for x in (q, k, v, do))
    want = backward(attn.spec, *wide, np.ones(lse.shape))
    for x, exact in ((q, want.q), (k, want.k), (v, want.v)):
        assert x.grad.dtype == x.dtype
        close(x.grad, exact)
    with torch.no_grad(), pytest.raises(CallError, match=f"do is {dtype}: expected {out_dtype}"):
        attn.backward(do.to(q.dtype), q, k, v, o, lse)


def test_only_what_asks_for_one_gets_a_gradient():
    attn, given = flashgen.compile(CAPPED), tensors()
    o, _ = attn(given["q"], given["k"].requires_grad_(), given["v"], bias=given["bias"])
    o.backward(given["do"])
    assert given["q"].grad is None
    assert torch.isfinite(given["k"].grad).all()


def test_packed_sequences():
    """A graph on sequences one behind the other, a tensor of theirs among its leaves."""
    bias = {"shape": ["hq", "b", "kv_len"], "dtype": "float32", "grad": True}
    spec = CAPPED | {"layout": "thd", "score": "s + bias[h, b, kv_idx]", "params": {}, "tensors": {"bias": bias}}
    attn, given = flashgen.compile(spec), tensors()
    leaves = {name: given[name][0].clone().requires_grad_() for name in ("q", "k", "v")} | {"bias": given["bias"].requires_grad_()}
    ends = {name: torch.tensor(at, dtype=torch.int32, device=DEVICE) for name, at in (("q", [0, 30, 30, 100]), ("k", [0, 25, 60, 130]))}
    lengths = {f"cu_seqlens_{name}": x for name, x in ends.items()}
    o, _ = attn(leaves["q"], leaves["k"], leaves["v"], bias=leaves["bias"], **lengths)
    o.backward(given["do"][0])
    q, k, v, bias, do = (x.detach().float().cpu().numpy().astype(np.float64) for x in (*leaves.values(), given["do"][0]))
    want = backward(attn.spec, q, k, v, do, bias=bias, **{name: x.cpu().numpy() for name, x in lengths.items()})
    for name, x in {"q": want.q, "k": want.k, "v": want.v, **want.values}.items():
        close(leaves[name].grad, x)
