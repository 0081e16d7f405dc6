"""An attention under torch.func: gradients and vmap in any order. Forward mode and second derivatives are refused by name."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from flashgen.errors import CallError
from flashgen.runtime import device
from flashgen.runtime.autograd import TWICE, differentiable
from flashgen.spec import Spec
from flashgen.torch.mapped import each, mapped
from flashgen.torch.text import text_of

FORWARD_MODE = "attention has no forward mode, as torch.func.jvp and dual tensors want: take torch.func.vjp, jacrev or backward()"


def transformed() -> bool:
    """True under a transform of torch.func, or where tensors may have tangents."""
    return torch._C._functorch.peek_interpreter_stack() is not None or torch.autograd.forward_ad._current_level >= 0


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def compilable() -> bool:
    """True where torch.compile may have the operator itself: vmap may be around it, no gradient of torch.func. Raises CallError."""
    if torch.autograd.forward_ad._current_level >= 0:
        raise CallError(FORWARD_MODE)
    if any(level.key() == torch._C._functorch.TransformType.Grad for level in torch._C._functorch.get_interpreter_stack() or ()):
        raise CallError("torch.func.grad and vjp of attention are not compiled: take backward() in what is compiled, or call them eagerly")
    return True


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, arrays: Any, *others: Any) -> Any:
    """The result of the operator, for all transforms."""
    levels = torch._C._functorch.get_interpreter_stack() or ()
    if levels and all(level.key() == torch._C._functorch.TransformType.Functionalize for level in levels):
        return torch.ops.flashgen.attention(q, k, v, arrays, *others)
    return _Attention.apply(others, q, k, v, *arrays)


def spec_of(others: Sequence[Any], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, arrays: Sequence[torch.Tensor]) -> Spec:
    """The spec of a call. `others`: the operator's last arguments, numbers and the text."""
    *numbers, text = others
    found = text_of(text)
    return found.spec({"q": q, "k": k, "v": v}, found.named(arrays, *numbers))


def differentiate(ctx: Any, gradients: Sequence[torch.Tensor | None], run: Callable[..., Any]) -> tuple[Any, ...]:
    """dq, dk, dv, and the gradients of arrays, None where there is none. `run`: the backward. Raises CallError."""
    if not ctx.spec.backward:
        raise CallError(f"{ctx.spec.name} has no backward: add the line backward: true to its spec, or pass tensors on detached")
    q, k, v, o, lse, *arrays = ctx.saved_tensors
    given = dict(zip(ctx.spec.outputs, gradients, strict=True))
    for name, gradient in given.items():
        if gradient is not None and name not in ("o", "lse"):
            raise CallError(f"{name} has no gradient: pass {name}.detach() on")
    do = torch.zeros_like(o) if given["o"] is None else given["o"]
    dlse = None if given.get("lse") is None else given["lse"].contiguous()
    dq, dk, dv, *rest = run(do, q, k, v, o, lse, dlse, arrays, *ctx.others)
    found = {one.name: x for one, x in zip(ctx.spec.with_grad, rest, strict=True)}
    of = [found.get(name) for name in text_of(ctx.others[-1]).arrays]
    return dq, dk, dv, [x if x is None else x.to(array.dtype) for x, array in zip(of, arrays, strict=True)]


def keep(ctx: Any, inputs: tuple[Any, ...], output: Sequence[torch.Tensor]) -> None:
    """Keeps what `differentiate` needs. `inputs`: of the operator. Raises PlanError where no kernel has the gradients."""
    q, k, v, arrays, *ctx.others = inputs
    ctx.spec = spec_of(ctx.others, q, k, v, arrays)
    if ctx.spec.backward and q.is_cuda and not device.missing():  # tensors without memory may claim a GPU that is not there
        differentiable(ctx.spec, device.device(q.get_device()).arch)
    found = dict(zip(ctx.spec.outputs, output, strict=True))
    ctx.save_for_backward(q, k, v, found[ctx.spec.kept], found.get("lse"), *arrays)
    ctx.set_materialize_grads(False)


class _Attention(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(others: Any, q: Any, k: Any, v: Any, *arrays: Any) -> Any:
        return tuple(torch.ops.flashgen.attention(q, k, v, list(arrays), *others))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        others, q, k, v, *arrays = inputs
        keep(ctx, (q, k, v, arrays, *others), output)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        def run(do: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, dlse: Any, arrays: Any, *others: Any) -> Any:
            return _Gradients.apply(others, do, q, k, v, o, lse, dlse, *arrays)

        dq, dk, dv, of_arrays = differentiate(ctx, gradients, run)
        return None, dq, dk, dv, *of_arrays

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:  # noqa: ARG004
        raise CallError(FORWARD_MODE)

    @staticmethod
    def vmap(info: Any, in_dims: Any, others: Any, q: Any, k: Any, v: Any, *arrays: Any) -> Any:
        results, dims = mapped(info, (*in_dims[1:4], in_dims[4:]), q, k, v, arrays, *others, operator=attention)
        return tuple(results), tuple(dims)


class _Gradients(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(others: Any, *given: Any) -> Any:
        return tuple(torch.ops.flashgen.attention_backward(*given[:7], list(given[7:]), *others))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:  # noqa: ARG004
        raise CallError(TWICE)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:  # noqa: ARG004
        raise CallError(FORWARD_MODE)

    @staticmethod
    def vmap(info: Any, in_dims: Any, others: Any, *given: Any) -> Any:
        results = each(info.batch_size, in_dims[1:], given, lambda *one: _Gradients.apply(others, *one))
        return tuple(results), (0,) * len(results)
