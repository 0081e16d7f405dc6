"""torch.vmap over an attention: one call whose batch is larger, or, where that would be another computation, a call each."""

from collections.abc import Sequence
from typing import Any

import torch

from flashgen.expr.language.reads import names_index
from flashgen.spec import Spec
from flashgen.spec.geometry import DENSE
from flashgen.spec.outputs import OUTPUTS
from flashgen.torch.text import text_of


def mapped(info: Any, in_dims: Sequence[Any], q: Any, k: Any, v: Any, arrays: Any, *others: Any) -> tuple[Any, Any]:
    """The results of an attention for each index of a mapped axis, and the axis of each result that it is."""
    n, (*of_qkv, of_arrays) = info.batch_size, in_dims[:4]
    text, operator = text_of(others[-1]), torch.ops.flashgen.attention
    q, k, v = (_first(x, at, n) for x, at in zip((q, k, v), of_qkv, strict=True))
    every = [_first(x, at, n) for x, at in zip(arrays, of_arrays, strict=True)]
    spec = text.spec({"q": q[0], "k": k[0], "v": v[0]}, text.named([x[0] for x in every], *others[:-1]))
    if _foldable(spec) and all(at is None for at in of_arrays):
        results = [x.unflatten(0, (n, -1)) for x in operator(*(x.flatten(0, 1) for x in (q, k, v)), arrays, *others)]
    else:
        each = [operator(q[i], k[i], v[i], [x[i] for x in every], *others) for i in range(n)]
        results = [torch.stack(parts) for parts in zip(*each, strict=True)]
    return results, [0] * len(results)


def _first(x: torch.Tensor, at: int | None, n: int) -> torch.Tensor:
    """A tensor with the mapped axis first, where it has one; else the same for all of its indices."""
    return x.expand(n, *x.shape) if at is None else x.movedim(at, 0)


def _foldable(spec: Spec) -> bool:
    """True if sequences of several calls may be those of one: nothing tells one sequence from another."""
    rows = all(name == "o" or OUTPUTS[name].by_row for name in spec.outputs)
    return spec.geometry is DENSE and spec.order.axis("b") == 0 and rows and not names_index(spec, "b")
