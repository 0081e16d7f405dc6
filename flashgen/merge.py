"""`merge_states`: attention over some keys and attention over others become attention over all of them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from flashgen.dtypes import ATTENTION_DTYPES
from flashgen.errors import CallError, did_you_mean
from flashgen.plan.merging import MergePlan
from flashgen.runtime import alone
from flashgen.runtime.arguments import rows_first
from flashgen.runtime.arrays import FAMILIES, Layout, liken
from flashgen.runtime.device import device
from flashgen.spec.layout import DEFAULT, HEADS_FIRST, LAYOUTS, AxisOrder, axis_order
from flashgen.theory.schedule import SoftmaxPlan, State, finish, natural
from flashgen.theory.schedule import merge_states as merged

_AT_LEAST = np.dtype(np.float32)  # what is narrower is merged in float32
_OF_ROWS = ("lse_a", "lse_b", "lse")  # a number a query row


def merge_states(o_a: Any, lse_a: Any, o_b: Any, lse_b: Any, layout: str = DEFAULT) -> tuple[Any, Any]:
    """o and lse over the keys of both, of which each has a part: a shared prefix and a suffix, or the pieces of a long cache.

    >>> prefix, suffix = attn(q, k[:, :64], v[:, :64]), attn(q, k[:, 64:], v[:, 64:])   # outputs: [o, lse]
    >>> o, lse = merge_states(*prefix, *suffix)

    o_a, o_b: [B, Sq, Hq, Dv], S and H swapped for layout bhsd; lse_a, lse_b: [B, Hq, Sq], natural log; for layout thd [total_q, Hq, Dv]
    and [Hq, total_q]. All of NumPy, or of CuPy or PyTorch on one GPU, where one kernel merges float16, bfloat16 and float32 in the caller's
    stream; o is of the dtype of o_a, lse of that of lse_a. The rule is associative and commutative, up to rounding. A row without keys
    (lse = -inf, whatever its o) changes nothing, and two of them are one. Raises CallError where arrays do not fit. Source: Milakov and
    Gimelshein, 1805.02867.
    """
    if layout not in list(LAYOUTS):
        raise CallError(f"unknown layout {layout!r}: {did_you_mean(str(layout), LAYOUTS)}")
    given = {"o_a": o_a, "lse_a": lse_a, "o_b": o_b, "lse_b": lse_b}
    layouts, order = _layouts(given, layout), axis_order(layout)
    family = FAMILIES[type(o_a)]
    assert family
    if (on := layouts["o_a"].device) is not None:
        return _on_gpu(given, layouts, order, on)
    o, lse = _in_numpy({name: family.to_numpy(x) for name, x in given.items()}, order)
    return family.from_numpy(o), family.from_numpy(lse)


def _layouts(given: Mapping[str, Any], layout: str) -> dict[str, Layout]:
    """The layouts of all arrays, of the right shapes and in one place. Raises CallError."""
    for name, x in given.items():
        if FAMILIES[type(x)] is None:
            raise CallError(f"{name} is a {type(x).__name__}: merge_states takes arrays of NumPy, CuPy and PyTorch")
        if type(x) is not type(given["o_a"]):
            raise CallError(f"{name} is a {type(x).__name__}, and o_a a {type(given['o_a']).__name__}: give arrays of one library")
    axes, o_a = axis_order(layout), tuple(given["o_a"].shape)
    if len(o_a) != len(axes.axes):
        raise CallError(f"o_a has {len(o_a)} axes, shape {o_a}: expected {len(axes.axes)} for layout {layout}")
    rows = tuple(o_a[axes.axis(letter)] for letter in HEADS_FIRST[:-1] if letter in axes.axes)
    for name, shape in {"lse_a": rows, "o_b": o_a, "lse_b": rows}.items():
        if (found := tuple(given[name].shape)) != shape:
            raise CallError(f"{name} has shape {found} beside o_a {o_a}: expected {shape} for layout {layout}")
    layouts = {name: liken(x, name).layout for name, x in given.items()}
    for name in ("o_a", "lse_a"):  # of their dtypes results are
        if not layouts[name].dtype.startswith(("float", "bfloat")):
            raise CallError(f"{name} is {layouts[name].dtype}: expected floats, as an attention gives them")
    if elsewhere := [name for name, x in layouts.items() if x.device != layouts["o_a"].device]:
        raise CallError(f"{elsewhere[0]} lies elsewhere than o_a: all arrays of a call lie on one device")
    return layouts


def _in_numpy(given: Mapping[str, np.ndarray[Any, Any]], order: AxisOrder) -> tuple[Any, Any]:
    def state(which: str) -> State:
        o, lse = (_wide(given[f"{name}_{which}"]) for name in ("o", "lse"))
        rows = order.expanded(o).transpose(order.to_heads_first)
        return State(order.expanded(lse), 1, np.where(order.expanded(lse)[..., None] == -np.inf, 0, rows))

    with np.errstate(invalid="ignore"):  # of rows that are infinite or NaN, and so is the result
        o, lse = finish(SoftmaxPlan(), merged(state("a"), state("b"), natural()), natural())
    o = order.given(o.transpose(order.from_heads_first))
    return o.astype(given["o_a"].dtype), order.given(lse).astype(given["lse_a"].dtype)


def _wide(x: Any) -> Any:
    return x.astype(np.promote_types(x.dtype, _AT_LEAST) if np.dtype(x.dtype).kind == "f" else _AT_LEAST)


def planned(layouts: Mapping[str, Layout], order: AxisOrder, arch: str) -> tuple[MergePlan, dict[str, tuple[int, ...]], dict[str, int]]:
    """The kernel for arrays of these layouts, o and lse among them; strides as [B, S, H, D], in elements; sizes. Raises CallError."""
    for name, x in layouts.items():
        wanted = ("float32",) if name in _OF_ROWS else ATTENTION_DTYPES if name == "o_a" else (layouts["o_a"].dtype,)
        if x.dtype not in wanted:
            raise CallError(f"{name} is {x.dtype}: on a GPU it is {' or '.join(wanted)}")
    strides = {name: rows_first(layouts[name], order.name).strides for name in ("o_a", "o_b", "o")}
    for name in _OF_ROWS:
        *of_batch, head, row = layouts[name].strides
        strides[name] = (*(of_batch or [0]), row, head, 0)
    batch, queries, heads, columns = rows_first(layouts["o_a"], order.name).shape
    plan = MergePlan(arch=arch, dtype=layouts["o_a"].dtype, columns=columns)
    return plan, strides, {"rows": batch * queries * heads, "queries": queries, "heads": heads}


def _on_gpu(given: Mapping[str, Any], layouts: Mapping[str, Layout], order: AxisOrder, on: int) -> tuple[Any, Any]:
    family = FAMILIES[type(given["o_a"])]
    found = {x: family.empty(layouts[f"{x}_a"].shape, layouts[f"{x}_a"].dtype, given["o_a"]) for x in ("o", "lse")}
    own = {name: liken(x, name).layout for name, x in found.items()}
    plan, strides, scalars = planned({**layouts, **own}, order, device(on).arch.name)
    if scalars["rows"]:
        alone.launch(plan, {**given, **found}, strides, scalars, -(-scalars["rows"] // plan.warps), on)
    return found["o"], found["lse"]
