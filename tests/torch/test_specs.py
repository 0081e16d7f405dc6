"""Specs of all kinds as modules: compiled, exported and under vmap they give what they give eagerly, and tell where no gradient is."""

import pytest

torch = pytest.importorskip("torch")

from flashgen.errors import CallError  # noqa: E402
from flashgen.torch import Attention  # noqa: E402
from tests.torch.test_compile import DEVICE, DTYPE, compiled, same  # noqa: E402

NAME = str(DTYPE).removeprefix("torch.")
BASE = {"dtype": NAME, "head_dim": 16, "mask": "causal"}
DENSE, PACKED, PAGES = [(2, 20, 4, 16), (2, 24, 2, 16)], [(20, 4, 16), (24, 2, 16)], [(2, 1, 4, 16), (4, 16, 2, 16)]
ENDS_Q, ENDS_K = [0, 5, 5, 20], [0, 9, 12, 24]
COLUMNS = {"wq": {"shape": [16], "dtype": NAME}, "wk": {"shape": [16], "dtype": NAME}}
EMBEDDED = {"norm": {"eps": 1e-6, "query": "wq", "key": "wk"}, "rotary": {"kind": "halves", "base": 1e4}, "tensors": COLUMNS}
GATE = {"output": "o * sigmoid(gate[b, q_idx, h, v_idx])", "tensors": {"gate": {"shape": ["b", "q_len", "hq", 16], "dtype": NAME}}}
KINDS = {
    "packed": ({"layout": "thd", "backward": True}, PACKED, {"cu_seqlens_q": ENDS_Q, "cu_seqlens_k": ENDS_K}),
    "pages": ({"cache": {"page": 16}}, PAGES, {"kv_lens": [20, 30], "block_table": [[0, 1], [2, 3]]}),
    "packed pages": (
        {"layout": "thd", "cache": {"page": 16}},
        [PACKED[0], PAGES[1]],
        {"cu_seqlens_q": [0, 9, 20], "kv_lens": [20, 30], "block_table": [[0, 1], [2, 3]]},
    ),
    "blocks": ({"blocks": {"m": 16, "n": 16, "lists": "idx"}}, DENSE, {"idx": [[[[0, -1], [1, 0]]]]}),
    "norm and rotary": (EMBEDDED, DENSE, {"wq": (16,), "wk": (16,)}),
    "output": (GATE, DENSE, {"gate": (2, 20, 4, 16)}),
    "outputs": ({"outputs": ["o", "lse", "max", "max_logit", "entropy"]}, DENSE, {}),
}


def made(kind):
    """A module, its q, k and v, and the rest of its values: arrays of integers, or drawn of a shape."""
    more, (of_q, of_k), values = KINDS[kind]
    random = torch.Generator().manual_seed(1)
    drawn = lambda shape: torch.randn(shape, generator=random).to(DEVICE, DTYPE)  # noqa: E731
    read = {name: drawn(x) if isinstance(x, tuple) else torch.tensor(x, dtype=torch.int32, device=DEVICE) for name, x in values.items()}
    return Attention(BASE | more), [drawn(of_q), drawn(of_k), drawn(of_k)], read


def several(x):
    return x if isinstance(x, tuple) else (x,)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_module_gives_eagerly_it_gives_everywhere(kind):
    module, qkv, values = made(kind)
    want = several(module(*qkv, **values))
    call = lambda q, k, v, values: module(q, k, v, **values)  # noqa: E731

    class Model(torch.nn.Module):
        def forward(self, q, k, v, values):
            return call(q, k, v, values)

    exported = torch.export.export(Model(), (*qkv, values)).module()
    mapped = torch.vmap(lambda q, k, v: call(q, k, v, values))(*(torch.stack([x, x]) for x in qkv))
    for found in (compiled(call)(*qkv, values), exported(*qkv, values), *zip(*several(mapped), strict=True)):
        for x, y in zip(several(found), want, strict=True):
            assert (x.shape, x.dtype) == (y.shape, y.dtype)
            assert torch.equal(x, y) or torch.allclose(x.float(), y.float(), atol=1e-2)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_eager_calls_or_are_refused(kind):
    module, qkv, values = made(kind)

    def gradients(function):
        leaves = [x.clone().requires_grad_() for x in qkv]
        several(function(*leaves, values))[0].float().square().sum().backward()
        return [x.grad for x in leaves]

    call = lambda q, k, v, values: module(q, k, v, **values)  # noqa: E731
    if module.spec.backward:
        assert all(same(x, y) for x, y in zip(gradients(compiled(call)), gradients(call), strict=True))
        return
    with pytest.raises(CallError, match="requires a gradient, and this kernel has none"):
        gradients(call)
    with pytest.raises(Exception, match="has no backward: add the line backward: true to its spec"):
        gradients(compiled(call))
