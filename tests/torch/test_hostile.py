"""Arguments of PyTorch's users that attention does not take are refused by name, eager and compiled; what is odd and right is served."""

import contextlib
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import flashgen  # noqa: E402
from flashgen import arch  # noqa: E402
from flashgen.errors import BackendError, CallError, PlanError  # noqa: E402
from flashgen.torch import Attention, attention, transforms  # noqa: E402
from tests.torch.test_compile import DEVICE, DTYPE, compiled, same, tensors  # noqa: E402

SPEC = {"dtype": str(DTYPE).removeprefix("torch."), "head_dim": 16, "mask": "causal"}


REFUSED = {
    "k of other columns": (lambda q, k, v: attention(q, k[..., :8], v), r"k has shape \[2, 24, 2, 8\]"),
    "q of three axes": (lambda q, k, v: attention(q[0], k, v), "q has 3 axes"),
    "heads that do not divide": (lambda q, k, v: attention(q[:, :, :3], k, v), "q has 3 heads and k has 2"),
    "k of another dtype": (lambda q, k, v: attention(q, k.double(), v), "k is float64"),
    "sequences": (lambda q, k, v: attention(q[:1], k, v), r"k has shape \[2, 24, 2, 16\]"),
    "integers": (lambda q, k, v: attention(q.int(), k.int(), v.int()), "q is int32"),
    "no heads": (lambda q, k, v: attention(q[:, :, :0], k[:, :, :0], v[:, :, :0]), "q has 0 heads"),
    "no k": (lambda q, _k, v: attention(q, None, v), "k is a NoneType"),
    "k elsewhere": (lambda q, k, v: attention(q, k.to("meta"), v), "meta|device"),
    "a value that is short": (lambda q, k, v: attention(q, k, v, score="s + t[h]", t=q[0, 0, :3, 0].float()), r"t has shape \[3\]"),
    "an argument of SDPA": (lambda q, k, v: attention(q, k, v, is_causal=True), "that is the mask 'causal'"),
    "a mask as a tensor": (lambda q, k, v: attention(q, k, v, q[0, :, 0] > 0), "mask is a Tensor|flashgen.trace"),
    "a flag": (lambda q, k, v: attention(q, k, v, score="s * c", c=True), "c is True|c is a bool"),
    "out": (lambda q, k, v: attention(q, k, v, out=torch.empty_like(q).requires_grad_()), "leave out out|out is given|requires a grad"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_mistakes_are_told_by_name(what):
    call, message = REFUSED[what]
    with pytest.raises((CallError, BackendError), match=message):
        call(*tensors())
    with pytest.raises(Exception, match=message):
        compiled(call)(*tensors())


def test_what_no_kernel_differentiates_is_refused_at_the_forward(monkeypatch):
    from torch._subclasses.fake_tensor import FakeTensorMode

    monkeypatch.setattr(transforms.device, "missing", lambda: "")
    monkeypatch.setattr(transforms.device, "device", lambda _: SimpleNamespace(arch=arch.by_name("sm_90a")))
    with FakeTensorMode():
        q = torch.empty(2, 24, 2, 64, device="cuda", requires_grad=True)
        with torch.no_grad():
            assert attention(q, q, q).is_cuda
        assert attention(*[q.bfloat16()] * 3).requires_grad
        with pytest.raises(PlanError, match="no backward for it: dtype is float32: gradients of it have no kernel"):
            attention(q, q, q)


def ragged():
    return torch.nested.nested_tensor([torch.ones(n, 2, 16, dtype=DTYPE, device=DEVICE) for n in (3, 5)], layout=torch.jagged)


def test_tensors_that_are_several_are_refused():
    for call in (attention, flashgen.attention):
        with pytest.raises(CallError, match=r"is a nested tensor|meaning of its own"):
            call(*(ragged(),) * 3)
    with pytest.raises(CallError, match="a nested tensor is several"):
        attention(*(torch.nested.nested_tensor([torch.ones(3, 2, 16)]),) * 3)
    with pytest.raises(Exception, match="is a nested tensor"):
        compiled(attention)(*(ragged(),) * 3)


def test_shards_are_refused():
    distributed = pytest.importorskip("torch.distributed.tensor")
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        mesh = distributed.init_device_mesh("cpu", (1,))
        q, k, v = (distributed.distribute_tensor(x.cpu(), mesh, [distributed.Shard(0)]) for x in tensors())
        with pytest.raises(CallError, match="q is a DTensor: call attention on its shards"):
            attention(q, k, v)
    finally:
        torch.distributed.destroy_process_group()


@contextlib.contextmanager
def duals():
    with torch.autograd.forward_ad.dual_level():
        yield lambda x: torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))


def test_forward_mode_is_refused_and_not_taken_for_zeros():
    q, k, v = tensors()
    with pytest.raises(CallError, match="attention has no forward mode"):
        torch.func.jvp(lambda q: attention(q, k, v), (q,), (q,))
    with pytest.raises(Exception, match="attention has no forward mode"):
        compiled(lambda q: torch.func.jvp(lambda q: attention(q, k, v), (q,), (q,)))(q)
    direct = flashgen.compile(SPEC)
    for call in (attention, flashgen.attention, direct, Attention(SPEC)):
        with duals() as dual, pytest.raises(CallError, match="forward mode"):
            call(q, dual(k), v)
        with duals():
            assert torch.equal(call(q, k, v), direct(q, k, v))


def gradient(call, q, k, v):
    return torch.autograd.grad(call(q, k, v).float().square().sum(), q, create_graph=True)[0]


def with_lse(q, k, v):
    return flashgen.compile(SPEC | {"backward": True})(q, k, v)[0]


@pytest.mark.parametrize("call", [attention, flashgen.attention, with_lse])
def test_second_derivatives_are_refused_and_first_ones_are_as_without_a_graph(call):
    q, k, v = (x.requires_grad_() for x in tensors())
    found = gradient(call, q, k, v)
    (want,) = torch.autograd.grad(call(q, k, v).float().square().sum(), q)
    assert same(found, want)
    for more in (found.sum(), found.square().sum() + q.sum()):
        with pytest.raises(CallError, match="no second derivatives"):
            more.backward(retain_graph=True)


class Watching(torch.utils._python_dispatch.TorchDispatchMode):
    """A mode, under which calls go through the dispatcher."""

    def __torch_dispatch__(self, function, _types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def test_second_derivatives_are_refused_under_transforms_and_modes():
    q, k, v = tensors()
    with pytest.raises(CallError, match="no second derivatives"):
        torch.func.grad(lambda q: torch.func.grad(lambda q: attention(q, k, v).square().sum())(q).sum())(q)
    with Watching(), pytest.raises(CallError, match="no second derivatives"):
        gradient(attention, q.requires_grad_(), k, v).sum().backward()


def test_compiled_gradients_of_torch_func_are_refused_and_compiled_vmap_is_served():
    given = tensors()
    with pytest.raises(Exception, match="grad and vjp of attention are not compiled"):
        compiled(torch.func.grad(lambda *x: attention(*x).sum()))(*given)
    mapped = torch.vmap(lambda *x: attention(*(y[None] for y in x))[0])
    assert torch.equal(compiled(mapped)(*given), attention(*given))


def test_calls_that_know_no_transform_are_refused_by_name():
    q, k, v = tensors()
    for transform in (torch.func.grad, torch.func.jacrev):
        with pytest.raises(CallError, match=r"inside a transform.*flashgen\.torch\.attention"):
            transform(lambda q: flashgen.attention(q, k, v).sum())(q)
    left = []
    torch.func.grad(lambda q: left.append(q) or q.sum())(q)
    with pytest.raises(CallError, match="left of a transform"):
        flashgen.attention(left[0], k, v)


def test_gradients_of_torch_func():
    q, k, v = tensors()
    slopes = torch.rand(4, device=DEVICE)

    def loss(q, k, v, slopes):
        return attention(q, k, v, score="s + slopes[h] * kv_idx", slopes=slopes).float().square().sum()

    leaves = [x.clone().requires_grad_() for x in (q, k, v, slopes)]
    want = torch.autograd.grad(loss(*leaves), leaves)
    assert all(same(*pair) for pair in zip(torch.func.grad(loss, (0, 1, 2, 3))(q, k, v, slopes), want, strict=True))
    each = torch.vmap(torch.func.grad(lambda *x: loss(*(y[None] for y in x), slopes), (0, 1, 2)))(q, k, v)
    assert all(same(*pair) for pair in zip(each, want[:3], strict=True))
    sums = torch.func.jacrev(lambda q: attention(q, k, v).float().square().sum((0, 1, 3)))(q)
    assert same(sums.sum(0), torch.func.grad(lambda q: attention(q, k, v).float().square().sum())(q))


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("compile", [False, True])
def test_one_of_them_may_require_a_gradient(which, compile):
    given, every = tensors(), [x.requires_grad_() for x in tensors()]
    given[which].requires_grad_()
    (compiled(attention) if compile else attention)(*given).float().square().sum().backward()
    attention(*every).float().square().sum().backward()
    assert [x.grad is None for x in given] == [i != which for i in range(3)]
    assert same(given[which].grad, every[which].grad)


def test_lengths_that_are_marked_dynamic_are_one_graph():
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    function = torch.compile(lambda q, k, v, bias: attention(q, k, v, score="s + bias[q_idx, kv_idx]", bias=bias), backend=backend)
    for n in (9, 17, 33):
        given = [*tensors(n, n), torch.ones(n, n, device=DEVICE)]
        for x, axis in (*((x, 1) for x in given[:3]), (given[3], 0), (given[3], 1)):
            torch._dynamo.mark_dynamic(x, axis)
        assert function(*given).shape == given[0].shape
    assert len(graphs) == 1


def test_no_elements_and_odd_strides_are_served():
    q, k, v = tensors()
    for given in ((q[:0], k[:0], v[:0]), (q[:, :0], k, v), (q, k[:, :0], v[:, :0])):
        assert compiled(attention)(*given).shape == attention(*given).shape == given[0].shape
    odd = q.transpose(1, 2).contiguous().transpose(1, 2), k[:, :1].expand_as(k), v.flip(-1)
    for call in (attention, compiled(attention)):
        assert torch.equal(call(*odd), attention(*(x.contiguous() for x in odd)))


def test_meta_tensors_have_shapes_and_no_numbers():
    o, lse = attention(*(x.to("meta") for x in tensors()), lse=True)
    assert (o.is_meta, o.shape, lse.shape, lse.dtype) == (True, (2, 20, 4, 16), (2, 4, 20), torch.float32)


def test_inference_mode():
    q, k, v = tensors()
    with torch.inference_mode():
        for call in (attention, compiled(attention)):
            assert torch.equal(call(q.clone().requires_grad_(), k, v), attention(q, k, v))


def test_a_module_keeps_the_dtype_of_its_spec_under_autocast():
    module, given = Attention(SPEC), tensors()
    with torch.autocast(DEVICE, torch.float16):
        assert module(*(x.half() for x in given)).dtype == DTYPE
        with torch.autocast(DEVICE, enabled=False):
            assert attention(*given).dtype == DTYPE


def biased(name):
    return SPEC | {"score": f"s + {name}[h]", "tensors": {name: {"shape": ["hq"], "dtype": "float32", "grad": True}}, "backward": True}


@pytest.mark.parametrize("cast", [torch.nn.Module.half, torch.nn.Module.bfloat16, torch.nn.Module.double])
def test_a_module_that_was_cast_hands_on_what_its_spec_says(cast):
    module, given = cast(Attention(biased("bias"), bias=[0.5, 1.0, 1.5, 2.0])).to(DEVICE), tensors()
    o, _ = module(*given)
    assert torch.equal(o, attention(*given, score="s + bias[h]", bias=torch.arange(1, 5, device=DEVICE) / 2))
    o.float().square().sum().backward()
    assert module.bias.grad.dtype == module.bias.dtype


@pytest.mark.parametrize("name", ["forward", "training", "half"])
def test_a_name_that_modules_have_is_refused(name):
    with pytest.raises(CallError, match=f"{name} is a name that modules of PyTorch have"):
        Attention(biased(name), **{name: torch.zeros(4)})
    assert Attention(biased(name)).to(DEVICE)(*tensors(), **{name: torch.zeros(4, device=DEVICE)})[0].shape == (2, 20, 4, 16)
