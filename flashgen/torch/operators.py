"""The operators of PyTorch's dispatcher: an attention, its backward, and what compilers and transforms ask of them.

Their last argument is a text that says what to compute (flashgen.torch.text), so that an exported program stands alone. Numbers are
Scalars, which compilers keep as symbols, where they compile anew for another `float`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from flashgen.errors import CallError
from flashgen.runtime.arguments import check_arrays, check_backward, output_shapes
from flashgen.spec import Spec
from flashgen.torch.mapped import mapped
from flashgen.torch.text import layouts, text_of

_LIBRARY = torch.library.Library("flashgen", "DEF")
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)

Tensors = list[torch.Tensor]


def _define(name: str, arguments: str, run: Callable[..., Tensors], shapes: Callable[..., Tensors]) -> None:
    """Defines an operator: the function that runs it on every device, and the one that tells its results' shapes."""
    _LIBRARY.define(f"{name}({arguments}, Tensor[] arrays, Scalar[] numbers, str text) -> Tensor[]", tags=_TAGS)
    for key in ("CPU", "CUDA"):
        _LIBRARY.impl(name, run, key)
    torch.library.register_fake(f"flashgen::{name}", shapes, lib=_LIBRARY)


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
        return list(text.attention((q, k, v), named).backward(do, q, k, v, o, lse, dlse, **named))


def _shapes_backward(do: Any, q: torch.Tensor, k: Any, v: Any, o: Any, lse: Any, dlse: Any, *values: Any) -> Tensors:
    text = text_of(values[-1])
    named, qkv = text.named(*values[:-1]), {"q": q, "k": k, "v": v}
    spec = text.spec(qkv, named)
    check_backward(spec, layouts(qkv | {"o": o, "do": do, "lse": lse, "dlse": dlse} | _arrays(spec, named)))
    shapes = [x.shape if isinstance(x, torch.Tensor) else () for x in (named[one.name] for one in spec.with_grad)]
    return [*(x.new_empty(x.shape) for x in (q, k, v)), *(q.new_empty(shape, dtype=torch.float32) for shape in shapes)]


def _arrays(spec: Spec, named: dict[str, Any]) -> dict[str, Any]:
    return {tensor.name: named[tensor.name] for tensor in spec.arrays}


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
    q, k, v, arrays, ctx.numbers, ctx.text = inputs
    text = text_of(ctx.text)
    ctx.spec = text.spec({"q": q, "k": k, "v": v}, text.named(arrays, ctx.numbers))
    found = dict(zip(ctx.spec.outputs, output, strict=True))
    ctx.save_for_backward(q, k, v, found["o"], found.get("lse"), *arrays)
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, gradients: Sequence[torch.Tensor | None]) -> tuple[Any, ...]:
    q, k, v, o, lse, *arrays = ctx.saved_tensors
    given = dict(zip(ctx.spec.outputs, gradients, strict=True))
    for name, gradient in given.items():
        if gradient is not None and name not in ("o", "lse"):
            raise CallError(f"{name} has no gradient: pass {name}.detach() on")
    do = torch.zeros_like(o) if given["o"] is None else given["o"]
    dlse = None if given.get("lse") is None else given["lse"].contiguous()
    dq, dk, dv, *rest = torch.ops.flashgen.attention_backward(do, q, k, v, o, lse, dlse, arrays, ctx.numbers, ctx.text)
    found = {one.name: x for one, x in zip(ctx.spec.with_grad, rest, strict=True)}
    of = [found.get(name) for name in text_of(ctx.text).arrays]
    of_arrays = [x if x is None else x.to(array.dtype) for x, array in zip(of, arrays, strict=True)]
    return dq, dk, dv, of_arrays, None if ctx.numbers else [], None  # an empty list counts as one of tensors


_define("attention", "Tensor q, Tensor k, Tensor v", _run, _shapes)
_define(
    "attention_backward",
    "Tensor do, Tensor q, Tensor k, Tensor v, Tensor o, Tensor? lse, Tensor? dlse",
    _run_backward,
    _shapes_backward,
)
torch.library.register_vmap("flashgen::attention", mapped, lib=_LIBRARY)
torch.library.register_autograd("flashgen::attention", _differentiate, setup_context=_keep, lib=_LIBRARY)
