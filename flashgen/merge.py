"""`merge_states`: attention over some keys and attention over others become attention over all of them."""

from typing import Any

import numpy as np

from flashgen.errors import CallError, did_you_mean
from flashgen.spec.layout import DEFAULT, HEADS_FIRST, LAYOUTS, axis_order
from flashgen.theory.schedule import SoftmaxPlan, State, finish, natural
from flashgen.theory.schedule import merge_states as merged

_AT_LEAST = np.dtype(np.float32)  # what is narrower is merged in float32


def merge_states(o_a: Any, lse_a: Any, o_b: Any, lse_b: Any, layout: str = DEFAULT) -> tuple[Any, Any]:
    """o and lse over the keys of both, of which each has a part: a shared prefix and a suffix, or the pieces of a long cache.

    >>> prefix, suffix = attn(q, k[:, :64], v[:, :64]), attn(q, k[:, 64:], v[:, 64:])   # outputs: [o, lse]
    >>> o, lse = merge_states(*prefix, *suffix)

    o_a, o_b: [B, Sq, Hq, Dv], S and H swapped for layout bhsd; lse_a, lse_b: [B, Hq, Sq], natural log. NumPy or CuPy arrays; o is of the
    dtype of o_a, lse of that of lse_a. The rule is associative and commutative, up to rounding. A row without keys (o = 0, lse = -inf)
    changes nothing, and two of them are one. Raises CallError where shapes do not fit. Source: Milakov and Gimelshein, 1805.02867.
    """
    if layout not in LAYOUTS:
        raise CallError(f"unknown layout {layout!r}: {did_you_mean(layout, LAYOUTS)}")
    order = axis_order(layout)
    _check(o_a, lse_a, o_b, lse_b, layout)
    x, y = (
        State(order.expanded(_wide(lse)), 1, order.expanded(_wide(o)).transpose(order.to_heads_first))
        for o, lse in ((o_a, lse_a), (o_b, lse_b))
    )
    with np.errstate(invalid="ignore"):  # of rows that are infinite or NaN, and so is the result
        o, lse = finish(SoftmaxPlan(), merged(x, y, natural()), natural())
    return order.given(o.transpose(order.from_heads_first)).astype(o_a.dtype), order.given(lse).astype(lse_a.dtype)


def _wide(x: Any) -> Any:
    return x.astype(np.promote_types(x.dtype, _AT_LEAST) if np.dtype(x.dtype).kind == "f" else _AT_LEAST)


def _check(o_a: Any, lse_a: Any, o_b: Any, lse_b: Any, layout: str) -> None:
    given = {"o_a": o_a, "lse_a": lse_a, "o_b": o_b, "lse_b": lse_b}
    for name, x in given.items():
        if not (hasattr(x, "dtype") and hasattr(x, "__array_function__") and hasattr(x, "transpose")):
            raise CallError(f"{name} is a {type(x).__name__}: merge_states takes NumPy and CuPy arrays")
    axes = axis_order(layout)
    if len(o_a.shape) != len(axes.axes):
        raise CallError(f"o_a has {len(o_a.shape)} axes, shape {o_a.shape}: expected {len(axes.axes)} for layout {layout}")
    rows = tuple(o_a.shape[axes.axis(letter)] for letter in HEADS_FIRST[:-1] if letter in axes.axes)
    wanted = {"lse_a": rows, "o_b": tuple(o_a.shape), "lse_b": rows}
    for name, shape in wanted.items():
        if tuple(given[name].shape) != shape:
            raise CallError(
                f"{name} has shape {tuple(given[name].shape)} beside o_a {tuple(o_a.shape)}: expected {shape} for layout {layout}"
            )
