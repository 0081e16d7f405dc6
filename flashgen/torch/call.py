"""Calls of PyTorch: straight to the kernel where nobody else has to see them, else through the operators."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from flashgen import attend
from flashgen.api import Attention as Compiled
from flashgen.errors import CallError
from flashgen.spec.layout import DEFAULT
from flashgen.torch import operators, transforms  # noqa: F401, the former defines them
from flashgen.torch.text import known, sorted_out, text_of_sketch, text_of_spec, told

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: str | Callable[..., Any] = "causal",
    *,
    score: str | Callable[..., Any] = "s",
    scale: str | float | None = None,
    weight: str | None = None,
    output: str | None = None,
    let: Mapping[str, str] | None = None,
    norm: Mapping[str, Any] | None = None,
    rotary: Mapping[str, Any] | None = None,
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
        further: Any = {"weight": weight, "output": output, "let": let, "norm": norm, "rotary": rotary}
        return attend.attention(q, k, v, mask, score=score, scale=scale, layout=layout, lse=lse, **further, **values)
    if not (isinstance(mask, str) and isinstance(score, str)):
        raise CallError("a function cannot be traced here: give the texts, found = flashgen.trace(mask=f), found.mask and **found.values")
    if scale is not None and not isinstance(scale, str):
        values["given_scale"], scale = scale, "given_scale"
    more = told(weight, output, let, norm, rotary)
    return run(attend.Sketch(mask, score, scale, layout, ("o", "lse") if lse else ("o",), more=more), q, k, v, values)


def run(sketch: attend.Sketch, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, values: Mapping[str, Any]) -> Any:
    """The outputs of a call without a spec. Raises CallError."""
    q, k, v = cast(q, k, v)
    if direct(q, k, v):
        return attend.run(sketch, q, k, v, values)
    known((*sketch,), tuple(values))
    names, parts = sorted_out(values)
    sought = tuple([name for name, x in zip(names[0], parts[0], strict=True) if _requires(x)])
    grads = sought if torch.is_grad_enabled() and (sought or _requires(q) or _requires(k) or _requires(v)) else None
    results = _dispatched(q, k, v, parts, text_of_sketch((*sketch[:-1], grads), names))
    return tuple(results[: len(sketch.outputs)]) if len(sketch.outputs) > 1 else results[0]


def attention_of_spec(attn: Compiled, told: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, values: Mapping[str, Any]) -> Any:
    """The outputs of a spec, which is `told` as JSON; under autocast q, k and v are cast to its dtype. Raises CallError."""
    q, k, v = cast(q, k, v, getattr(torch, attn.spec.dtype))
    if direct(q, k, v):
        return attn(q, k, v, **values)
    names, parts = sorted_out(values)
    results = _dispatched(q, k, v, parts, text_of_spec(told, names))
    return tuple(results) if len(results) > 1 else results[0]


def _dispatched(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, parts: tuple[Any, ...], text: str) -> Any:
    """The results of an operator, or under torch.func what it wants in place of one. Raises CallError for tensors that are no array."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, torch.Tensor):
            raise CallError(f"{name} is a {type(x).__name__}, beside tensors of PyTorch: pass a tensor")
        if x.is_nested:
            raise CallError(f"{name} is a nested tensor: pass its values, {name}.values(), to a spec with layout: thd")
        if hasattr(x, "placements"):
            raise CallError(f"{name} is a DTensor: call attention on its shards, {name}.to_local(), as under local_map")
    if torch.compiler.is_compiling():
        transforms.compilable()
    elif transforms.transformed():
        return transforms.attention(q, k, v, *parts, text)
    return torch.ops.flashgen.attention(q, k, v, *parts, text)


def cast(q: Any, k: Any, v: Any, dtype: torch.dtype | None = None) -> tuple[Any, Any, Any]:
    """q, k and v in a dtype, that of autocast by default, where autocast is on."""
    if not (torch.compiler.is_compiling() or torch._C._is_any_autocast_enabled()):
        return q, k, v
    kind = q.device.type
    if kind not in ("cpu", "cuda") or not torch.is_autocast_enabled(kind):
        return q, k, v
    dtype = dtype or torch.get_autocast_dtype(kind)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def direct(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """True if a call is eager, on plain tensors, under no mode, transform and trace: then nobody has to see the operator."""
    if torch.compiler.is_compiling() or not (type(q) in _PLAIN and type(k) in _PLAIN and type(v) in _PLAIN) or q.is_meta:
        return False
    return not (torch._C._len_torch_dispatch_stack() or transforms.transformed() or torch._C._get_tracing_state())


def _requires(x: Any) -> bool:
    """True if a tensor, or the one that a transform wraps, requires a gradient."""
    if not isinstance(x, torch.Tensor):
        return False
    while not x.requires_grad and not torch.compiler.is_compiling() and torch._C._functorch.is_functorch_wrapped_tensor(x):
        x = torch._C._functorch.get_unwrapped(x)
    return bool(x.requires_grad)
