"""Calls of PyTorch: straight to the kernel where nobody else has to see them, else through the operators."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from flashgen import attend
from flashgen.errors import CallError
from flashgen.spec import Spec
from flashgen.spec.layout import DEFAULT
from flashgen.torch import operators  # noqa: F401, defines them
from flashgen.torch.text import sorted_out, text_of_sketch, text_of_spec

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: str | Callable[..., Any] = "causal",
    *,
    score: str | Callable[..., Any] = "s",
    scale: str | float | None = None,
    layout: str = DEFAULT,
    lse: bool = False,
    **values: Any,
) -> Any:
    """o = softmax(score(scale * q k^T) where mask) v, as `flashgen.attention` has it, for tensors of PyTorch under its compilers and
    transforms.

    >>> o = attention(q, k, v, "causal & window(255, 0)", score="s + slopes[h] * (kv_idx - q_idx)", slopes=slopes)

    Shapes are those of `flashgen.attention`. q, k, v and `values` may require gradients. Under autocast q, k and v are cast to its dtype.
    Functions as mask or score are traced in eager calls; under torch.compile give the texts of `flashgen.trace`. Raises CallError,
    SpecError, PlanError, BackendError.
    """
    if direct(q, k, v):
        q, k, v = cast(q, k, v)
        return attend.attention(q, k, v, mask, score=score, scale=scale, layout=layout, lse=lse, **values)
    if not (isinstance(mask, str) and isinstance(score, str)):
        raise CallError("a function cannot be traced here: give the texts, found = flashgen.trace(mask=f), found.mask and **found.values")
    if scale is not None and not isinstance(scale, str):
        values["given_scale"], scale = scale, "given_scale"
    return run(attend.Sketch(mask, score, scale, layout, ("o", "lse") if lse else ("o",)), q, k, v, values)


def run(sketch: attend.Sketch, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, values: Mapping[str, Any]) -> Any:
    """The outputs of a call without a spec. Raises CallError."""
    q, k, v = cast(q, k, v)
    if direct(q, k, v):
        return attend.run(sketch, q, k, v, values)
    names, parts = sorted_out(values)
    sought = tuple([name for name, x in zip(names[0], parts[0], strict=True) if _requires(x)])
    grads = sought if torch.is_grad_enabled() and (sought or _requires(q) or _requires(k) or _requires(v)) else None
    results = torch.ops.flashgen.attention(q, k, v, *parts, text_of_sketch((*sketch[:-1], grads), names))
    return tuple(results[: len(sketch.outputs)]) if len(sketch.outputs) > 1 else results[0]


def attention_of_spec(spec: Spec, told: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, values: Mapping[str, Any]) -> Any:
    """The outputs of a spec, which is `told` as JSON. Raises CallError."""
    q, k, v = cast(q, k, v)
    if direct(q, k, v):
        return attend.compiled(spec)(q, k, v, **values)
    names, parts = sorted_out(values)
    results = torch.ops.flashgen.attention(q, k, v, *parts, text_of_spec(told, names))
    return tuple(results) if len(results) > 1 else results[0]


def cast(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k and v in the dtype of autocast, where that is on."""
    if not (torch.compiler.is_compiling() or torch._C._is_any_autocast_enabled()):
        return q, k, v
    kind = q.device.type
    if not torch.is_autocast_enabled(kind):
        return q, k, v
    dtype = torch.get_autocast_dtype(kind)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def direct(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """True if a call is eager, on plain tensors, under no mode and no transform: then nobody has to see the operator."""
    if torch.compiler.is_compiling() or not (type(q) in _PLAIN and type(k) in _PLAIN and type(v) in _PLAIN):
        return False
    return not torch._C._len_torch_dispatch_stack() and torch._C._functorch.peek_interpreter_stack() is None


def _requires(x: torch.Tensor) -> bool:
    """True if a tensor, or the one that a transform wraps, requires a gradient."""
    while not torch.compiler.is_compiling() and torch._C._functorch.is_functorch_wrapped_tensor(x):
        x = torch._C._functorch.get_unwrapped(x)
    return bool(x.requires_grad)
