"""Calls of JAX: checked while JAX traces them, run by XLA."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

import flashgen
from flashgen.api import default_arch
from flashgen.attend import Sketch, check_words
from flashgen.errors import CallError
from flashgen.further import further
from flashgen.jax import targets
from flashgen.jax.text import Text, foldable, layouts, text_of, told
from flashgen.runtime.arguments import check_arrays, check_names, output_shapes
from flashgen.runtime.autograd import differentiable
from flashgen.spec import Spec
from flashgen.spec.layout import DEFAULT
from flashgen.texts import as_texts

Given = tuple[Any, ...]


def attention(
    q: Any,
    k: Any,
    v: Any,
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
    """o = softmax(score(scale * q k^T) where mask) v, as `flashgen.attention` has it, under jit, grad, vmap and shard_map.

    >>> o = attention(q, k, v, "causal & window(255, 0)", score="s + slopes[h] * (kv_idx - q_idx)", slopes=slopes)

    Shapes are those of `flashgen.attention`. Numbers among `values` are part of the program, arrays are arguments of it, and float32 arrays
    have gradients as q, k and v have. Raises CallError, SpecError while JAX traces, by the name of an argument.
    """
    if "out" in values:
        raise CallError("out is given, and arrays of JAX are not written to: leave out out")
    mask, score, values = as_texts(mask, score, values)
    if scale is not None and not isinstance(scale, str):
        values["given_scale"], scale = _number("scale", scale), "given_scale"
    more = further(weight, output, let, norm, rotary)
    sketch = Sketch(mask=mask, score=score, scale=scale, layout=layout, outputs=("o", "lse") if lse else ("o",), more=more)
    check_words(sketch, values)
    results = _call(sketch, q, k, v, values)
    return results if lse else results[0]


class Attention:
    """A spec, callable on JAX's arrays under its transformations.

    >>> attn = Attention("specs/softcap.yaml")
    >>> o, lse = jax.jit(lambda q, k, v: attn(q, k, v, softcap=30.0))(q, k, v)

    Gradients are those of a spec with `backward: true`. Raises SpecError, PlanError, CompileError, BackendError.
    """

    def __init__(self, spec: Spec | str | os.PathLike[str] | Mapping[str, Any]):
        self.spec = flashgen.compile(spec).spec

    def __call__(self, q: Any, k: Any, v: Any, **values: Any) -> Any:
        """o, or what the spec's outputs say, as (o, lse), of arrays as the spec's layout has them. Raises CallError."""
        check_names(self.spec, values)
        results = _call(self.spec, q, k, v, values)
        return results if len(results) > 1 else results[0]


def _call(what: Sketch | Spec, q: Any, k: Any, v: Any, values: Mapping[str, Any]) -> Given:
    numbers = {name: _number(name, x) for name, x in values.items() if not np.ndim(x)}
    given = {"q": q, "k": k, "v": v, **{name: x for name, x in values.items() if name not in numbers}}
    if isinstance(what, Spec):  # in its own order
        given = {name: given[name] for name in ("q", "k", "v", *(tensor.name for tensor in what.arrays))}
    text = Text(what=what, arrays=tuple(given), numbers=numbers)
    results: Given = _differentiable(told(text), *_varying_alike(*(_array(name, x) for name, x in given.items())))
    return results


def _array(name: str, value: Any) -> Any:
    try:
        return jnp.asarray(value)
    except (TypeError, ValueError) as error:
        raise CallError(f"{name} is a {type(value).__name__}: expected an array ({error})") from None


def _number(name: str, value: Any) -> int | float:
    if isinstance(value, jax.core.Tracer):
        what = f"{name} is a number that only the program knows"
        raise CallError(f"{what}: give a number of Python, or read it from an array of one element, as score='s * c[0]' does")
    number = value.item() if getattr(value, "shape", None) == () else value
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise CallError(f"{name} is {number!r}: expected a number")
    return number


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _differentiable(told: str, *given: Any) -> Given:
    text = text_of(told)
    spec = text.spec(_named(text, given))
    return _forward(text, spec, given)[: len(spec.outputs)]


def _named(text: Text, given: Given) -> Any:
    return layouts(dict(zip(text.arrays, given, strict=True)))


def _forward(text: Text, spec: Spec, given: Given) -> Given:
    sizes = check_arrays(spec, _named(text, given))
    shapes = output_shapes(spec, sizes)
    results = [jax.ShapeDtypeStruct(shape, spec.output_element(name).numpy) for name, shape in shapes.items()]
    return _run(targets.forward_of(sizes), replace(text, foldable=foldable(spec)), results, given)


def _keep(told: str, *primals: Any) -> tuple[Given, Any]:
    text, given = text_of(told), tuple(x.value for x in primals)
    count = len(text.spec(_named(text, given)).outputs)
    others = zip(text.arrays[3:], primals[3:], strict=True)
    sought = {name: x.value.dtype for name, x in others if x.perturbed and jnp.issubdtype(x.value.dtype, jnp.inexact)}
    if isinstance(text.what, Sketch):
        for name, dtype in sought.items():
            if dtype != jnp.float32:
                raise CallError(f"{name} is {dtype}, and is differentiated: gradients are float32. Pass {name}.astype('float32')")
        text = replace(text, what=text.what._replace(sought=tuple(sought)))
    elif not text.what.backward:
        raise CallError(f"{text.what.name} has no backward: add the line backward: true to its spec")
    spec = differentiable(text.spec(_named(text, given)), default_arch())
    if lacking := sorted(sought.keys() - {one.name for one in spec.with_grad}):
        what = f"{lacking[0]} is differentiated, and the spec gives no gradient"
        raise CallError(f"{what}: declare it with grad: true, or pass jax.lax.stop_gradient({lacking[0]})")
    results = _forward(text, spec, given)
    return results[:count], (given, results, {one.name: () for one in spec.with_grad})  # names alone, of nothing


def _back(told: str, kept: Any, gradients: Given) -> Given:
    text, (given, results, with_grad) = text_of(told), kept
    if isinstance(text.what, Sketch):
        text = replace(text, what=text.what._replace(sought=tuple(name for name in text.arrays if name in with_grad)))
    named = dict(zip(text.arrays, given, strict=True))
    spec = text.spec(_named(text, given))
    of = {name: x for name, x in zip(spec.outputs, gradients, strict=False) if not isinstance(x, SymbolicZero)}
    if strange := sorted(of.keys() - {"o", "lse"}):
        raise CallError(f"{strange[0]} has no gradient: pass jax.lax.stop_gradient({strange[0]}) on")
    found = dict(zip(spec.outputs, results, strict=True))
    roles = {"do": of.get("o", jnp.zeros_like(found["o"])), "o": found[spec.kept], "lse": found.get("lse"), "dlse": of.get("lse")}
    taken = {name: x for name, x in (named | roles).items() if x is not None}
    shapes = [*(x.shape for x in given[:3]), *(named[one.name].shape if one.name in named else () for one in spec.with_grad)]
    dtypes = [spec.element.numpy] * 3 + [np.dtype("float32")] * len(spec.with_grad)
    shaped = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    names = ("q", "k", "v", *(one.name for one in spec.with_grad))
    made = dict(zip(names, _run(targets.BACKWARD, replace(text, arrays=tuple(taken)), shaped, tuple(taken.values())), strict=True))
    return tuple(made.get(name) for name in text.arrays)


_differentiable.defvjp(_keep, _back, symbolic_zeros=True)


def _run(name: str, text: Text, results: list[jax.ShapeDtypeStruct], given: Given) -> Given:
    given = _varying_alike(*given)
    found = _foreign(name, told(text), tuple(results), *given)
    axes = _varying(given[0])
    return tuple(_cast_varying(x, axes - _varying(x)) for x in found)


@partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def _foreign(name: str, text: str, results: Given, *given: Any) -> Any:
    return jax.ffi.ffi_call(name, results, vmap_method="broadcast_all")(*given, text=text)


@_foreign.defjvp  # type: ignore[untyped-decorator]
def _refuse(*_: Any) -> Any:
    raise CallError("attention has no second derivatives: take its gradients as they are, by jax.lax.stop_gradient of them")


def _varying(x: Any) -> frozenset[str]:
    """The axes of a mesh along which x differs in shard_map: `vma` of its type up to JAX 0.9, `manual_axis_type` from 0.10 on."""
    kind = jax.typeof(x)
    axes: Any = getattr(getattr(kind, "manual_axis_type", None), "varying", None) or getattr(kind, "vma", frozenset())
    return frozenset(axes)


def _varying_alike(*given: Any) -> Given:
    """The arrays, cast to differ along the same axes; the derivative of that is the sum that a shared array's gradient needs."""
    axes = frozenset().union(*map(_varying, given))
    return tuple(_cast_varying(x, axes - _varying(x)) for x in given)


def _cast_varying(x: Any, axes: frozenset[str]) -> Any:
    return jax.lax.pcast(x, tuple(sorted(axes)), to="varying") if axes else x
