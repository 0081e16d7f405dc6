"""Calls that PyTorch differentiates: a node of its graph, whose backward is the attention's."""

import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from flashgen.arch import Arch
from flashgen.errors import CallError, PlanError
from flashgen.spec import Spec

INSIDE = "inside a transform, as vmap or grad of torch.func: call flashgen.torch.attention, which knows them"
TWICE = "attention has no second derivatives: its gradients are differentiated, as create_graph=True allows. Pass them on detached"


def wanted(*values: Any) -> bool:
    """True if PyTorch shall differentiate a call with these values."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.is_grad_enabled():
        return False
    tensor = torch.Tensor
    return True in [isinstance(x, tensor) and x.requires_grad for x in values]  # any(map(requires, ...)) takes twice as long


def requires(value: Any) -> bool:
    """True for a tensor of PyTorch that requires a gradient."""
    return isinstance(value, sys.modules["torch"].Tensor) and value.requires_grad


def differentiable(spec: Spec, arch: Arch) -> Spec:
    """The spec. Raises PlanError where a framework asks for its gradients, and no kernel has them: at the forward, before anything of a
    model's step is computed."""
    if not spec.backward:
        return spec
    from flashgen.plan.backward import check_differentiable  # which no forward needs

    try:
        check_differentiable(spec, arch)
    except PlanError as error:
        what = f"the call is differentiated, and there is no backward for it: {error}"
        raise PlanError(f"{what}. Or take no gradients: torch.no_grad() in PyTorch, jax.lax.stop_gradient of q, k and v in JAX") from None
    return spec


def apply(attn: Any, run: Callable[..., tuple[Any, ...]], qkv: tuple[Any, Any, Any], values: Mapping[str, Any]) -> Any:
    """The result of attn(q, k, v, **values) as a node of PyTorch's graph. `run`: what computes the outputs. Raises CallError where a value
    has no gradient in the spec."""
    if sys.modules["torch"]._C._are_functorch_transforms_active():
        raise CallError(f"q, k or v is {INSIDE}")
    spec: Spec = attn.spec
    for name, value in values.items():
        if wanted(value) and name not in {one.name for one in spec.with_grad}:
            raise CallError(f"{name} requires a gradient, and the spec gives none: declare it with grad: true, or pass {name}.detach()")
    names = tuple(values)
    results = _node()((attn, run, names), *qkv, *values.values())
    return results[0] if len(spec.outputs) == 1 else results


@cache
def _indices(outputs: tuple[str, ...]) -> tuple[int, int | None, tuple[int, ...]]:
    """The index among the outputs of what the backward takes as o, that of lse, and the indices of those that have no gradient; o is the
    first."""
    constants = tuple(i for i, name in enumerate(outputs) if name not in ("o", "lse"))
    return outputs.index("o_raw") if "o_raw" in outputs else 0, outputs.index("lse") if "lse" in outputs else None, constants


@cache
def _node() -> Callable[..., Any]:
    """The function of PyTorch's kind, made when PyTorch is there: that of C, as Function.apply first asks what torch.func left behind."""
    torch = sys.modules["torch"]

    class FlashgenAttention(torch.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, call: tuple[Any, Any, tuple[str, ...]], q: Any, k: Any, v: Any, *values: Any) -> Any:
            attn, run, names = call
            results = run(q, k, v, dict(zip(names, values, strict=True)) if names else {})
            o, lse, constants = _indices(attn.spec.outputs)
            saved = q, k, v, results[o], None if lse is None else results[lse]
            if names:
                ctx.call = attn, names, [None if torch.is_tensor(x) else x for x in values]
                ctx.save_for_backward(*saved, *[x for x in values if torch.is_tensor(x)])
            else:
                ctx.call = attn, (), ()
                ctx.save_for_backward(*saved)
            ctx.set_materialize_grads(False)
            if constants:
                ctx.mark_non_differentiable(*[results[i] for i in constants])
            return results

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            if torch.is_grad_enabled():  # create_graph=True
                return FlashgenOnce.apply(ctx, len(ctx.saved_tensors), *ctx.saved_tensors, *gradients)
            (attn, names, others), (q, k, v, o, lse, *tensors) = ctx.call, ctx.saved_tensors
            spec = attn.spec
            given = dict(zip(spec.outputs, gradients, strict=True))
            left = iter(tensors)
            values = {name: next(left) if x is None else x for name, x in zip(names, others, strict=True)}
            do = torch.zeros_like(o) if given["o"] is None else given["o"]
            dlse = None if given.get("lse") is None else given["lse"].contiguous()  # of a sum it is one number, expanded
            dq, dk, dv, *rest = attn.backward(do, q, k, v, lse=lse, dlse=dlse, **{spec.kept: o}, **values)
            of = {one.name: x for one, x in zip(spec.with_grad, rest, strict=True)}
            needed = dict(zip(names, ctx.needs_input_grad[4:], strict=True))
            return (None, dq, dk, dv, *(of[name].to(values[name].dtype) if needed[name] else None for name in names))

    class FlashgenOnce(torch.autograd.Function):  # type: ignore[misc, name-defined]
        """The gradients, as a node of the graph that refuses to be differentiated."""

        @staticmethod
        def forward(_: Any, ctx: Any, kept: int, *given: Any) -> Any:
            return FlashgenAttention.backward(ctx, *given[kept:])

        @staticmethod
        def backward(_: Any, *gradients: Any) -> Any:  # noqa: ARG004
            raise CallError(TWICE)

    return super(torch.autograd.Function, FlashgenAttention).apply  # type: ignore[no-any-return] # C's own: no look for transforms
