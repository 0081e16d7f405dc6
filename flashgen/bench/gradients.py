"""The gradients of a case: the backward alone of flashgen and of each peer that PyTorch differentiates, and what they are checked by."""

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashgen.api import Attention
from flashgen.arch import Arch
from flashgen.bench.accuracy import Sample, head_of, relative, rows_of_heads, values_of, weights
from flashgen.bench.cases import Case
from flashgen.bench.peers import OURS, Implementation, Prepared, Tensors, UnfitError, implementations, to_torch
from flashgen.expr.language.read import read
from flashgen.expr.meaning.definition import meaning
from flashgen.expr.meaning.gradient import derivatives
from flashgen.expr.meaning.reference import weigh

Array = NDArray[Any]
TIMES = 3  # what plain attention errs


def sample(case: Case, arrays: Mapping[str, Any]) -> Sample:
    """Rows of dq in float64. `arrays`: q, k, v, do and what the spec reads, by name."""
    rows, heads = rows_of_heads(case)
    slope, dtype, of_o = derivatives(case.spec).s, case.spec.element.numpy, case.spec.out_element.numpy
    exact: list[Array] = []
    plain: list[Array] = []
    kinds: tuple[tuple[list[Array], Any, Any, Any], ...] = ((exact, np.float64, np.float64, np.float64), (plain, np.float32, dtype, of_o))
    for b, h in heads:
        hk = h * case.sizes.kv_heads // case.heads
        head, values = {"b": b, "h": h, "hk": hk}, values_of(case, arrays)
        known = {**values, **head, "q_idx": rows[:, None], "kv_idx": np.arange(case.seqlen)[None, :]}
        of = (("q", h, case.q_len), ("k", hk, case.seqlen), ("v", hk, case.seqlen), ("do", h, case.q_len))
        q, k, v, do = (head_of(case, arrays[name], b, i, n) for name, i, n in of)
        for kept, sums, rounded, rounded_o in kinds:
            of_rows, keys, of_keys, gradient = (x.astype(rounded).astype(sums) for x in (q[rows], k, v, do[rows]))
            product = of_rows @ keys.T
            p, factor, seen = weights(case, product, head, rows, values)
            scale = float(meaning(read(case.spec).scale, known))
            d = factor * (gradient @ of_keys.T)
            if case.spec.softmax.normalized:
                o = weigh(p * factor, seen, of_keys)[0].astype(rounded_o).astype(sums)
                d = p * (d - (gradient * o).sum(-1)[:, None])
            ds = np.where(seen & (d != 0), d * meaning(slope, known | {"s": product * scale}), 0)
            kept.append((scale * (ds.astype(rounded).astype(sums) @ keys)).astype(rounded).astype(np.float64))
    allowed = TIMES * relative(np.stack(plain), np.stack(exact))
    return Sample(case=case, rows=rows, heads=heads, exact=np.stack(exact), allowed=allowed)


def of_flashgen(case: Case, tensors: Tensors, arch: str | None = None) -> Prepared:
    """Prepares flashgen's gradients: dq, of q, k, v and do, from what its forward gives."""
    attn = Attention(case.spec, arch)

    def results(q: Any, k: Any, v: Any) -> Any:
        found = attn(q, k, v, **tensors)
        named = dict(zip(case.spec.outputs, found if isinstance(found, tuple) else (found,), strict=True))
        return named[attn.spec.kept], named.get("lse")

    def gradient(kept: Any, q: Any, k: Any, v: Any, do: Any) -> Any:
        o, lse = kept
        return attn.backward(do, q, k, v, lse=lse, **{attn.spec.kept: o}, **tensors)[0]

    return Prepared(_after(results, gradient))


def of_pytorch(peer: Implementation, case: Case, tensors: Tensors) -> Prepared:
    """Prepares the gradients of a peer whose calls PyTorch differentiates."""
    torch, forward = importlib.import_module("torch"), peer.prepare(case, tensors)

    def graph(*rows: Any) -> Any:
        leaves = [x.detach().requires_grad_() for x in rows]
        return leaves, forward.call(*leaves)

    def gradient(kept: Any, q: Any, k: Any, v: Any, do: Any) -> Any:  # noqa: ARG001
        leaves, o = kept
        if not o.requires_grad:
            raise UnfitError("it has no gradients")
        return torch.autograd.grad(o, leaves, do, retain_graph=True)[0]

    return Prepared(_after(graph, gradient), forward.mask_ms)


def _after(forward: Callable[..., Any], gradient: Callable[..., Any]) -> Callable[..., Any]:
    """Calls of a gradient, each set of arrays with what the forward gave for it once."""
    kept: dict[int, Any] = {}

    def call(q: Any, k: Any, v: Any, do: Any) -> Any:
        if id(q) not in kept:
            kept[id(q)] = forward(q, k, v)
        return gradient(kept[id(q)], q, k, v, do)

    return call


def differentiating(arch: Arch) -> list[Implementation]:
    """flashgen, on Hopper also with the kernel of all other architectures, and every installed peer whose calls PyTorch differentiates."""
    found = implementations(arch)
    ours = {one.name: functools.partial(of_flashgen, arch=None if one.name == OURS else "sm_90") for one in found if one.module == OURS}
    peers = {one.name: functools.partial(of_pytorch, one) for one in found if one.module != OURS and one.adopt is to_torch}
    return [replace(one, prepare=(ours | peers)[one.name]) for one in found if one.name in ours | peers]
