"""The operators of PyTorch's dispatcher: an attention, its backward, and what compilers and transforms ask of them.

Their last argument is a text that says what to compute (flashgen.torch.text), so that an exported program stands alone. Numbers are
Scalars, which compilers keep as symbols, where they compile anew for another `float`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from flashgen.errors import CallError
from flashgen.runtime.arguments import check_arrays, check_backward, output_shapes
from flashgen.runtime.autograd import TWICE
from flashgen.spec import Spec
from flashgen.torch.mapped import mapped
from flashgen.torch.text import layouts, text_of
from flashgen.torch.transforms import differentiate, keep

_LIBRARY = torch.library.Library("flashgen", "DEF")
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)

Tensors = list[torch.Tensor]


def _define(name: str, arguments: str, run: Callable[..., Tensors], shapes: Callable[..., Tensors]) -> None:
    """Defines an operator: the function that runs it on every device, and the one that tells its results' shapes."""
    _LIBRARY.define(f"{name}({arguments}, Tensor[] arrays, Scalar[]? integers, Scalar[]? numbers, str text) -> Tensor[]", tags=_TAGS)
    for key in ("CPU", "CUDA"):
        _LIBRARY.impl(name, _untraced(run), key)
    torch.library.register_fake(f"flashgen::{name}", shapes, lib=_LIBRARY)


def _untraced(run: Callable[..., Tensors]) -> Callable[..., Tensors]:
    """The same, into which torch.jit.trace does not look."""

    def alone(*given: Any) -> Tensors:
        trace = torch._C._get_tracing_state()
        if not trace:
            return run(*given)
        torch._C._set_tracing_state(None)
        results = run(*given)
        torch._C._set_tracing_state(trace)  # where that failed, the trace is over
        return results

    return alone


def _run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *values: Any) -> Tensors:
    text = text_of(values[-1])
    named = text.named(*values[:-1])
    with torch.no_grad():
        results = text.attention((q, k, v), named)(q, k, v, **named)
    return list(results) if isinstance(results, tuple) else [results]


def _shapes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *values: Any) -> Tensors:
    text = text_of(values[-1])
    named, qkv = text.named(*values[:-1]), {"q": q, "k": k, "v": v}
    spec = text.spec(qkv, named)
    shapes = output_shapes(spec, check_arrays(spec, layouts(qkv | _arrays(spec, named))))
    return [q.new_empty(shape, dtype=getattr(torch, spec.output_element(name).name)) for name, shape in shapes.items()]


def _run_backward(do: Any, q: torch.Tensor, k: Any, v: Any, o: Any, lse: Any, dlse: Any, *values: Any) -> Tensors:
    text = text_of(values[-1])
    named = text.named(*values[:-1])
    with torch.no_grad():
        attention = text.attention((q, k, v), named)
        return [x.contiguous() for x in attention.backward(do, q, k, v, lse=lse, dlse=dlse, **{attention.spec.kept: o}, **named)]


def _shapes_backward(do: Any, q: torch.Tensor, k: Any, v: Any, o: Any, lse: Any, dlse: Any, *values: Any) -> Tensors:
    text = text_of(values[-1])
    named, qkv = text.named(*values[:-1]), {"q": q, "k": k, "v": v}
    spec = text.spec(qkv, named)
    check_backward(spec, layouts(qkv | {"o": o, "do": do, "lse": lse, "dlse": dlse} | _arrays(spec, named)))
    shapes = [x.shape if isinstance(x, torch.Tensor) else () for x in (named[one.name] for one in spec.with_grad)]
    return [*(x.new_empty(x.shape) for x in (q, k, v)), *(q.new_empty(shape, dtype=torch.float32) for shape in shapes)]


def _arrays(spec: Spec, named: dict[str, Any]) -> dict[str, Any]:
    return {tensor.name: named[tensor.name] for tensor in spec.arrays}


def _differentiate(ctx: Any, gradients: Sequence[torch.Tensor | None]) -> tuple[Any, ...]:
    found = differentiate(ctx, gradients, torch.ops.flashgen.attention_backward)
    return *found, None, None, None


def _refuse(ctx: Any, gradients: Any) -> Any:  # noqa: ARG001
    raise CallError(TWICE)


_define("attention", "Tensor q, Tensor k, Tensor v", _run, _shapes)
_define(
    "attention_backward",
    "Tensor do, Tensor q, Tensor k, Tensor v, Tensor o, Tensor? lse, Tensor? dlse",
    _run_backward,
    _shapes_backward,
)
torch.library.register_vmap("flashgen::attention", mapped, lib=_LIBRARY)
torch.library.register_autograd("flashgen::attention", _differentiate, setup_context=keep, lib=_LIBRARY)
torch.library.register_autograd("flashgen::attention_backward", _refuse, lib=_LIBRARY)
