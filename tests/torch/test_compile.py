"""`flashgen.torch` under PyTorch's compilers: torch.compile, export, opcheck, where PyTorch is installed."""

import io

import pytest

import flashgen

torch = pytest.importorskip("torch")

from flashgen.attend import Sketch  # noqa: E402
from flashgen.torch import Attention, attention  # noqa: E402
from flashgen.torch.text import text_of_sketch  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32
CAPPED = {"score": "c * tanh(s / c) + slopes[h] * (kv_idx - q_idx)"}


def tensors(q_len=20, kv_len=24, heads=(4, 2), batch=2):
    random = torch.Generator().manual_seed(q_len)
    shapes = ((batch, q_len, heads[0], 16), *((batch, kv_len, heads[1], 16),) * 2)
    return [torch.randn(shape, generator=random).to(DEVICE, DTYPE) for shape in shapes]


def same(found, want):
    """True for the same bits; on a GPU gradients are sums whose order is nobody's."""
    if DEVICE == "cpu":
        return torch.equal(found, want)
    return (found.float() - want.float()).norm() <= 1e-2 * want.float().norm()


def capped(q, k, v, slopes, c):
    return attention(q, k, v, "causal", slopes=slopes, c=c, **CAPPED)


def seen(_b, _h, q_idx, kv_idx):
    return q_idx >= kv_idx


def compiled(function, **options):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager", **options)


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_compiled_call_and_its_gradients_are_the_eager_ones(dynamic):
    slopes, found = torch.rand(4, device=DEVICE), []
    for function in (capped, compiled(capped, dynamic=dynamic)):
        leaves = [x.clone().requires_grad_() for x in (*tensors(), slopes)]
        o = function(*leaves, 20.0)
        o.float().square().sum().backward()
        found.append([o.detach(), *(x.grad for x in leaves)])
    for eager, other in zip(*found, strict=True):
        assert same(other, eager)


def test_a_compiled_call_serves_other_numbers_and_lengths():
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    function, slopes = torch.compile(capped, fullgraph=True, backend=backend), torch.rand(4, device=DEVICE)
    for c in (2.5, 3.5, 4.5, 5.5):
        for n in (20, 24, 31):
            given = tensors(n, n)
            assert torch.equal(function(*given, slopes, c), capped(*given, slopes, c))
    assert len(graphs) <= 3  # as it is, for other lengths, for other numbers


def test_integers_of_a_mask():
    window = lambda q, k, v, reach: attention(q, k, v, "causal & window(reach, 0)", reach=reach)  # noqa: E731
    function, given = compiled(window), tensors()
    for reach in (3, 4, 5):
        assert torch.equal(function(*given, reach), window(*given, reach))


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_program_serves_other_sizes(strict):
    class Model(torch.nn.Module):
        def forward(self, q, k, v):
            return attention(q, k, v, "causal", lse=True)

    sizes = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
    program = torch.export.export(Model(), tuple(tensors()), strict=strict, dynamic_shapes=(sizes, sizes, sizes)).module()
    for given in (tensors(), tensors(7, 9, batch=3)):
        for found, want in zip(program(*given), attention(*given, "causal", lse=True), strict=True):
            assert torch.equal(found, want)


@pytest.mark.parametrize("numbers", [{}, {"c": 3}, {"c": 3.0}, {"c": 3.0, "reach": 5}])
def test_an_exported_program_is_written_to_a_file(numbers):
    mask = "causal & window(reach, 0)" if "reach" in numbers else "causal"
    call = lambda q, k, v, **more: attention(q, k, v, mask, score="c * s" if numbers else "s", **more)  # noqa: E731

    class Model(torch.nn.Module):
        def forward(self, q, k, v):
            return call(q, k, v, **numbers)

    file = io.BytesIO()
    torch.export.save(torch.export.export(Model(), tuple(tensors())), file)
    file.seek(0)
    assert torch.equal(torch.export.load(file).module()(*tensors()), call(*tensors(), **numbers))


@pytest.mark.filterwarnings("ignore")  # it is deprecated
def test_a_traced_call_computes():
    traced = torch.jit.trace(capped, (*tensors(), torch.rand(4, device=DEVICE), torch.tensor(20.0)), check_trace=False)
    given = (*(x.flip(1) for x in tensors()), torch.rand(4, device=DEVICE), torch.tensor(20.0))
    assert torch.equal(traced(*given), capped(*given))
    with pytest.raises(flashgen.CallError, match="sees no kernel"):
        torch.jit.trace(lambda q: flashgen.attention(q, q, q), (tensors()[0],), check_trace=False)


@pytest.mark.parametrize("gradients", [False, True])
def test_the_operator_is_what_the_dispatcher_expects(gradients):
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_(gradients) for x in tensors())
    sought = ("slopes",) if gradients else None
    text = text_of_sketch(tuple(Sketch("causal", CAPPED["score"], None, "bshd", ("o",), sought=sought)), (("slopes",), (), ("c",)))
    slopes = torch.rand(4, device=DEVICE).requires_grad_(gradients)
    most = {} if DEVICE == "cpu" else {"rtol": 1e-1, "atol": 1e-1}
    torch.library.opcheck(torch.ops.flashgen.attention.default, (q, k, v, [slopes], None, [2.0], text), **most)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda q, k, v: attention(q, k[:, :, :1], v), "v has shape"),
        (lambda q, k, v: attention(q, k, v, "causl"), "did you mean 'causal'"),
        (lambda q, k, v: attention(q, k, v, reach=3), "unknown argument 'reach'"),
        (lambda q, k, v: attention(q, k, v, seen), "flashgen.trace"),
    ],
)
def test_mistakes_are_told_while_tracing(call, message):
    with pytest.raises(Exception, match=message):
        compiled(call)(*tensors())


LEARNED = {
    "dtype": str(DTYPE).removeprefix("torch."),
    "head_dim": 16,
    **CAPPED,
    "params": {"c": {"default": 5.0, "grad": True}},
    "tensors": {"slopes": {"shape": ["hq"], "dtype": "float32", "grad": True}},
    "backward": True,
}


def test_a_module_learns_what_its_spec_gives_gradients_of():
    module, found = Attention(LEARNED, slopes=torch.zeros(4), c=3.0).to(DEVICE), []
    assert dict(module.named_parameters()).keys() == {"slopes", "c"}
    for function in (module, compiled(module)):
        module.zero_grad()
        o, lse = function(*tensors())
        (o.float().square().sum() + lse.sum()).backward()
        found.append([o.detach(), module.slopes.grad, module.c.grad])
    assert all(same(*pair) for pair in zip(*found, strict=True))
    assert found[0][1].abs().max() > 0


def test_values_of_a_module_are_those_of_its_spec():
    with pytest.raises(ValueError, match="bias is given, and attention has no such value: it has c, slopes"):
        Attention(LEARNED, bias=torch.zeros(4))
