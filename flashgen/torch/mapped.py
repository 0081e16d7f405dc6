"""torch.vmap over an attention: one call whose batch is larger, or, where that would be another computation, a call each."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from flashgen.expr.language.reads import names_index
from flashgen.spec import Spec
from flashgen.spec.geometry import DENSE
from flashgen.spec.outputs import OUTPUTS
from flashgen.torch.text import text_of


def mapped(
    info: Any, in_dims: Sequence[Any], q: Any, k: Any, v: Any, arrays: Any, *others: Any, operator: Callable[..., Any] | None = None
) -> tuple[Any, Any]:
    """The results of an attention for each index of a mapped axis, and the axis of each result that it is. `operator`: what computes them,
    the dispatcher's by default."""
    n, (*of_qkv, of_arrays) = info.batch_size, in_dims[:4]
    text, operator = text_of(others[-1]), operator or torch.ops.flashgen.attention
    qkv = [_first(x, at, n) for x, at in zip((q, k, v), of_qkv, strict=True)]
    every = [_first(x, at, n) for x, at in zip(arrays, of_arrays, strict=True)]
    spec = text.spec({name: x[0] for name, x in zip("qkv", qkv, strict=True)}, text.named([x[0] for x in every], *others[:-1]))
    if _foldable(spec) and all(at is None for at in of_arrays):
        results = [x.unflatten(0, (n, -1)) for x in operator(*(x.flatten(0, 1) for x in qkv), arrays, *others)]
    else:
        results = each(n, (*of_qkv, *of_arrays), (q, k, v, *arrays), lambda q, k, v, *more: operator(q, k, v, list(more), *others))
    return results, [0] * len(results)


def each(n: int, in_dims: Sequence[int | None], given: Sequence[Any], run: Callable[..., Any]) -> list[torch.Tensor]:
    """The results of a call for each of n indices of the mapped axes, stacked. `given`: tensors, and None."""
    calls = [run(*(x if at is None else x.select(at, i) for x, at in zip(given, in_dims, strict=True))) for i in range(n)]
    return [torch.stack(parts) for parts in zip(*calls, strict=True)]


def _first(x: torch.Tensor, at: int | None, n: int) -> torch.Tensor:
    """A tensor with the mapped axis first, where it has one; else the same for all of its indices."""
    return x.expand(n, *x.shape) if at is None else x.movedim(at, 0)


def _foldable(spec: Spec) -> bool:
    """True if sequences of several calls may be those of one: nothing tells one sequence from another."""
    rows = all(OUTPUTS[name].like_o or OUTPUTS[name].by_row for name in spec.outputs)
    return spec.geometry is DENSE and spec.order.axis("b") == 0 and rows and not names_index(spec, "b")
