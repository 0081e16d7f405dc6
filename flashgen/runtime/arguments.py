"""Checks the arguments of a call against the spec before anything runs."""

import operator
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from flashgen.dtypes import float32, float32_fault, number_text
from flashgen.errors import CallError
from flashgen.expr import Requirement, evaluate
from flashgen.expr.language.nodes import names
from flashgen.expr.prove.affine import MAX_LENGTH
from flashgen.expr.prove.rounding import rounding
from flashgen.plan.geometry import Sizes, row_words, shape_words, sizes_of
from flashgen.plan.kernels.exact_sums import counted
from flashgen.plan.params import softmax_scale
from flashgen.plan.program import Program
from flashgen.runtime.arrays import Layout
from flashgen.runtime.habits import unknown
from flashgen.runtime.tensors import check_tensors, shape_text
from flashgen.spec import Spec
from flashgen.spec.layout import axis_order
from flashgen.spec.outputs import OUTPUTS
from flashgen.spec.tensors import Lengths

WAYS = {"short": "tanh.approx", "fast": "tanh by an exponential"}


def rows_first(layout: Layout, order: str) -> Layout:
    """The layout with axes [B, S, H, D], whatever the spec's `layout` is."""
    axes = axis_order(order)
    if axes.packed:
        layout = layout._replace(shape=(1, *layout.shape), strides=(0, *layout.strides))
    at = axes.to_rows_first
    return (
        layout
        if at == (0, 1, 2, 3)
        else layout._replace(shape=tuple(layout.shape[i] for i in at), strides=tuple(layout.strides[i] for i in at))
    )


def output_shapes(spec: Spec, sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """The shapes of the spec's outputs: o as q but with v's columns, those of a row [B, Hq, Sq], those of a head [Hq]."""
    o = spec.order.arranged(b=sizes.batch, s=sizes.q_len, h=sizes.heads, d=spec.head_dim.v)
    words = row_words(spec, sizes)
    return {name: o if OUTPUTS[name].like_o else OUTPUTS[name].shape(words) for name in spec.outputs}


def check_arrays(spec: Spec, layouts: Mapping[str, Layout]) -> Sizes:
    """The sizes of a call. `layouts`: of q, k, v, the spec's tensors, and of outputs that the caller gives, by name.

    Raises CallError that names the argument, what it is and what it has to be.
    """
    for name in ("q", "k", "v"):
        if len(layouts[name].shape) != (axes := len(spec.order_of(name).axes)):
            what = f"{name} has {len(layouts[name].shape)} axes, shape {shape_text(layouts[name].shape)}"
            raise CallError(f"{what}: expected {axes}, {_expected(spec, name)}")
    q, k = (rows_first(layouts[name], spec.layout_of(name)).shape for name in "qk")
    for name, words in spec.geometry.lengths:
        shape = layouts[name].shape
        if spec.geometry.separate_keys and (len(shape) != len(words) or (words == ("b + 1",) and not shape[0])):
            raise CallError(f"{name} has shape {shape_text(layouts[name].shape)}: expected {shape_text(words)}")
    sizes = sizes_of(spec, q, k, {name: layouts[name].shape or (0,) for name in spec.sizing})
    _check_roles(spec, layouts, q[0], sizes)
    _check_heads(spec, sizes)
    for name, shape in output_shapes(spec, sizes).items():
        if name in layouts and layouts[name].shape != shape:
            raise CallError(f"{name} has shape {shape_text(layouts[name].shape)}: expected {shape_text(shape)}")
    sizes = check_tensors(spec, layouts, sizes)
    for name, words in spec.geometry.lengths:
        if layouts[name].shape != (shape := tuple(map(sizes.axis, words))):
            raise CallError(f"{name} has shape {shape_text(layouts[name].shape)}: expected {shape_text(shape)}, {shape_text(words)}")
        if not layouts[name].contiguous:
            raise CallError(f"{name} has strides {layouts[name].strides}: it has to be contiguous")
    _check_types(spec, layouts)
    known = [n for n in (sizes.q_len, sizes.kv_len) if isinstance(n, int)]  # symbols of a compiler are numbers in the call itself
    if (longest := max(known, default=0)) > MAX_LENGTH:
        raise CallError(f"a sequence has {longest} positions: at most {MAX_LENGTH}, so that their sums fit 32 bits. Split it")
    return sizes


def _check_roles(spec: Spec, layouts: Mapping[str, Layout], batch: int, sizes: Sizes) -> None:
    """Checks the shapes of q, k and v. `batch`: that of q as [B, S, H, D]."""
    of_keys = (max(1, sizes.pages), spec.page) if spec.page else (batch, sizes.kv_len)
    wanted: dict[str, tuple[int, ...]] = {
        "q": (batch, sizes.q_len, sizes.heads, spec.head_dim.qk),
        "k": (*of_keys, sizes.kv_heads, spec.head_dim.qk),
        "v": (*of_keys, sizes.kv_heads, spec.head_dim.v),
    }
    for name, by_rows in wanted.items():
        order = spec.order_of(name)
        shape = tuple(by_rows[i] for i in order.from_rows_first)[order.packed :]
        if layouts[name].shape != shape:
            beside = (
                ""
                if name == "q"
                else f", beside q {shape_text(layouts['q'].shape)}" + (f" and k {shape_text(layouts['k'].shape)}" if name == "v" else "")
            )
            raise CallError(
                f"{name} has shape {shape_text(layouts[name].shape)}{beside}: expected {shape_text(shape)}, {_expected(spec, name)}"
            )


def given_name(spec: Spec, name: str) -> str:
    """The name by which a call of the backward gives an array: what stands as o is o_raw where the spec has `output`."""
    return spec.kept if name == "o" else name


def check_backward(spec: Spec, layouts: Mapping[str, Layout]) -> Sizes:
    """The sizes of a call of the backward. `layouts`: besides those of a forward o, do and, where given, lse and dlse; o is what the
    attention itself gave.

    Raises CallError as `check_arrays` does, and for an lse that is missing, or that a softmax has none of.
    """
    further = ("o", "do", "lse", "dlse")
    sizes = check_arrays(spec, {name: layout for name, layout in layouts.items() if name not in further})
    if spec.softmax.normalized and "lse" not in layouts:
        rows = "[Hq, total_q]" if spec.geometry.packed else "[B, Hq, Sq]"
        raise CallError(f"lse is None: expected what the forward gave, {rows} float32")
    for name in ("lse", "dlse"):
        if name in layouts and not spec.softmax.normalized:
            raise CallError(f"{name} is given, and softmax: none has no lse: pass None")
    shapes = output_shapes(spec, sizes)
    for name, output in zip(further, ("o", "o", "lse", "lse"), strict=True):
        if name in layouts:
            _check_like(given_name(spec, name), layouts[name], shapes[output], spec.output_element(output).name, layouts["q"])
            if output == "lse" and not layouts[name].contiguous:
                raise CallError(f"{name} has strides {layouts[name].strides}: it has to be contiguous")
    return counted(spec, sizes, {name: layout.shape for name, layout in layouts.items()})


def _check_like(name: str, layout: Layout, shape: tuple[int, ...], dtype: str, q: Layout) -> None:
    """Checks shape, dtype and device of an array that goes with an output. `q`: beside which it lies."""
    if layout.shape != shape:
        raise CallError(f"{name} has shape {shape_text(layout.shape)}: expected {shape_text(shape)}, as q, k and v are")
    if layout.dtype != dtype:
        cast = f"{name}.astype('{dtype}') (PyTorch: {name}.to(torch.{dtype}))"
        raise CallError(f"{name} is {layout.dtype}: expected {dtype}. Cast it, {cast}")
    if layout.device != q.device:
        raise CallError(f"{name} lies on {_place(layout)} and q on {_place(q)}: all arrays of a call lie on one device")


def checked_bounds(spec: Spec, given: Mapping[str, Any]) -> Sizes:
    """The largest sizes of calls that a launcher is prepared for. Raises CallError."""
    for name, value in given.items():
        most = MAX_LENGTH if name in ("q_len", "kv_len") else 2**31 - 1
        if isinstance(value, bool) or not hasattr(value, "__index__") or not 0 < operator.index(value) <= most:
            word = name if name in ("heads", "kv_heads") else f"max_{name}"
            raise CallError(f"{word} is {value!r}: expected an integer from 1 to {most}")
    page = spec.page or 1
    sizes = Sizes(**given)
    _check_heads(spec, sizes)
    return replace(sizes, kv_len=-(-sizes.kv_len // page) * page, page=page)


def _check_heads(spec: Spec, sizes: Sizes) -> None:
    if not sizes.heads or not sizes.kv_heads:
        raise CallError(f"q has {sizes.heads} heads and k {sizes.kv_heads}: each takes at least 1")
    if sizes.heads % sizes.kv_heads:
        raise CallError(f"q has {sizes.heads} heads and k has {sizes.kv_heads}: the heads of k and v have to divide those of q")
    if spec.group not in (None, sizes.group):
        raise CallError(f"q has {sizes.heads} heads and k has {sizes.kv_heads}, a group of {sizes.group}: the spec says group {spec.group}")


def _check_types(spec: Spec, layouts: Mapping[str, Layout]) -> None:
    dtypes = (
        {"q": spec.dtype, "k": spec.dtype, "v": spec.dtype}
        | {name: spec.output_element(name).name for name in spec.outputs}
        | {t.name: t.dtype for t in spec.arrays}
    )
    for name, layout in layouts.items():
        if layout.dtype != dtypes[name]:
            cast = f"{name}.astype('{dtypes[name]}') (PyTorch: {name}.to(torch.{dtypes[name]}))"
            if name in dict(spec.geometry.lengths):
                what = "lengths and pages" if spec.page else "lengths"
                raise CallError(f"{name} is {layout.dtype}: {what} are int32. Cast it, {cast}")
            raise CallError(f"{name} is {layout.dtype}: the spec says {dtypes[name]}. Cast it, {cast}, or change the spec")
        if layout.device != layouts["q"].device:
            raise CallError(f"{name} lies on {_place(layout)} and q on {_place(layouts['q'])}: all arrays of a call lie on one device")


def numbers(spec: Spec, given: Mapping[str, Any]) -> dict[str, int | float]:
    """The params that a call gives, as numbers of their type. Raises CallError for what is none."""
    return {p.name: checked_number(p.name, p.type, given[p.name]) for p in spec.params if p.name in given}


def check_values(program: Program, given: Mapping[str, int | float]) -> dict[str, int | float]:
    """All params of a call, defaults filled in. Raises CallError for a value that the plan does not allow."""
    values = {p.name: given.get(p.name, p.default) for p in program.spec.params}
    check_bounds(program.spec, values)
    softmax_scale(program, values)
    check_requirements(program, values)
    for name in program.attention.ranges.requires:
        if values[name] < 1:
            raise CallError(f"{name} is {values[name]}, but something is divided by it: it takes at least 1")
    return values


def check_bounds(spec: Spec, values: Mapping[str, int | float]) -> None:
    """Raises CallError for a value outside of the bounds that the spec gives its param."""
    for p in spec.params:
        value, low, high = values[p.name], p.min, p.max
        if not (low is None or value >= low) or not (high is None or value <= high):
            least, most = (
                f"{word} {number_text(bound)}" if bound is not None else "" for word, bound in (("at least", low), ("at most", high))
            )
            raise CallError(f"{p.name} is {number_text(value)}: the spec allows {' and '.join(filter(None, (least, most)))}")


def check_requirements(program: Program, values: Mapping[str, int | float]) -> None:
    """Raises CallError for values, of all params, that the expressions or the holes of a program do not allow."""
    for requirement in (*program.expressions.requires, *program.holes.requires):
        if not _holds(requirement, values):
            read = ", ".join(f"{name} = {number_text(values[name])}" for name in sorted(names(requirement.node)))
            raise CallError(f"{requirement.message}; {read} breaks {requirement.text}")
    _check_rounding(program, values)


def _check_rounding(program: Program, values: Mapping[str, int | float]) -> None:
    chosen = program.holes.score.rounding
    found = chosen and rounding(program.expressions, program.spec, chosen.tanh, **values)
    if chosen and found and not chosen.serves(found):
        read = {p.name: values[p.name] for p in program.spec.params if p.name in names(program.expressions.score)}
        given = ", ".join(f"{name} = {value:.9g}" for name, value in read.items())
        fault = f"with {given} the score's {WAYS[chosen.way]} is too far off"
        raise CallError(f"{fault}: compile a spec whose params have defaults near these values")


def _holds(requirement: Requirement, values: Mapping[str, int | float]) -> bool:
    with np.errstate(all="ignore"):
        return bool(evaluate(requirement.node, values))


def check_names(spec: Spec, given: Mapping[str, Any]) -> None:
    """Raises CallError for a keyword that is neither a param nor a tensor of the spec, and for a tensor that is missing."""
    tensors = [t.name for t in spec.arrays]
    known = [p.name for p in spec.params] + tensors
    for name in given:
        if name not in known:
            raise unknown(name, ["out", *known])
    for name in tensors:
        if name not in given:
            missing = next(t for t in spec.arrays if t.name == name)
            what = f"the tensor {name}, shape" if not isinstance(missing, Lengths) else f"{name}, {missing.dtype} of shape"
            raise CallError(f"{what} {shape_text(missing.shape)}, is missing: give it as {name}=...")


def checked_number(name: str, type: str, value: Any) -> int | float:
    """The number that a call gives for a param of this type, an integer of 32 bits or a float32. Raises CallError for what is none."""
    if isinstance(value, bool | str | bytes) or getattr(value, "shape", ()) != ():
        raise CallError(f"{name} is {value!r}: expected a number")
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, bool):
        raise CallError(f"{name} is {value}: expected a number")
    if isinstance(value, int) and abs(value) >= 10**40:  # which no message holds, and float32 neither
        raise CallError(
            f"{name} is a number of more than 40 digits: {'an integer of 32 bits has' if type == 'int' else 'float32 has'} to hold it"
        )
    try:
        number = operator.index(value) if type == "int" else float(value)
    except (TypeError, ValueError, OverflowError):
        raise CallError(f"{name} is {value!r}: expected {'an integer' if type == 'int' else 'a number'}") from None
    if type == "int" and not -(2**31) <= number < 2**31:
        raise CallError(f"{name} is {number}: an integer of 32 bits has to hold it")
    if type == "float" and (fault := float32_fault(number)):
        raise CallError(f"{name} is {number}: {fault}")
    return number if type == "int" else float32(number)


def _expected(spec: Spec, name: str) -> str:
    """The shape in the words of the documentation."""
    columns = spec.head_dim.v if name == "v" else spec.head_dim.qk
    return shape_text(shape_words(spec, name, heads="Hq" if name == "q" else "Hk", columns=str(columns)))


def _place(layout: Layout) -> str:
    return "the host" if layout.device is None else f"GPU {layout.device}"
