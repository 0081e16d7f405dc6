"""A norm and a rotary embedding of q and k, as their definitions say: in float64 for the reference, in float32 for kernels' interpreter."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flashgen.spec.embedding import INDICES, LENGTHS, Rotary

if TYPE_CHECKING:
    from flashgen.spec import Spec

Array = NDArray[Any]
ERROR = 2.0**-21  # of an element before it is rounded, of the largest of its row


def embedded(spec: "Spec", role: str, x: Array, rows: Array, known: Mapping[str, Any]) -> Array:
    """Rows of q or of k [..., n, D] after the norm and the rotary embedding, rounded to the spec's dtype once, in the dtype of x.

    `rows`: [n], which of a sequence they are. `known`: b, q_len and kv_len of the sequence, and its tensors. Angles are those
    of float32: a position times a frequency, rounded.
    """
    if role not in spec.embedded:
        return x
    with np.errstate(all="ignore"):
        found: Array = _unrounded(spec, role, x, rows, known).astype(spec.element.numpy).astype(x.dtype)
    return found


def doubt(spec: "Spec", role: str, x: Array, rows: Array, known: Mapping[str, Any]) -> Array:
    """The distance of the two numbers to which float32 may round each element of `embedded`, arguments as of that; 0 where there is one."""
    if role not in spec.embedded:
        return np.zeros_like(x)
    found = _unrounded(spec, role, x, rows, known)
    with np.errstate(all="ignore"):
        off = ERROR * np.abs(found).max(-1, keepdims=True, initial=0)
        low, high = ((found + sign * off).astype(spec.element.numpy).astype(x.dtype) for sign in (-1, 1))
        between: Array = np.nan_to_num(high - low, nan=0.0, posinf=0.0)
    return between


def _unrounded(spec: "Spec", role: str, x: Array, rows: Array, known: Mapping[str, Any]) -> Array:
    if norm := spec.norm_of(role):
        learned = norm.columns(role)
        with np.errstate(all="ignore"):
            x = x / np.sqrt(np.mean(x * x, -1, keepdims=True) + np.asarray(norm.eps, x.dtype))
            x = x if learned is None else x * np.asarray(known[learned]).astype(x.dtype)
    if rotary := spec.rotary_of(role):
        x = turned(x, *_cos_and_sin(rotary, role, rows, known, x.dtype), rotary.pairs)
    return x


def embedding_gradient(spec: "Spec", role: str, x: Array, d: Array, rows: Array, known: Mapping[str, Any]) -> tuple[Array, Array | None]:
    """The gradient of rows x of q or of k [..., n, D], where what they become has the gradient d; and that of the learned columns of the
    norm [D], a row a row of d, if there are such. A row whose d is 0 has none, whatever it holds.

    Other arguments as of `embedded`. With u = x / root and g = d * learned, where root^2 = mean(x^2) + eps:

        dx = (g - u * mean(g * u)) / root        dlearned = d * u
    """
    if rotary := spec.rotary_of(role):
        cos, sin = _cos_and_sin(rotary, role, rows, known, d.dtype)
        d = turned(d, cos, -sin, rotary.pairs)
    if not (norm := spec.norm_of(role)):
        return d, None
    learned, none = norm.columns(role), (d == 0).all(-1, keepdims=True)
    with np.errstate(all="ignore"):
        root = np.sqrt(np.mean(x * x, -1, keepdims=True) + np.asarray(norm.eps, x.dtype))
        unit = x / root
        g = d if learned is None else d * np.asarray(known[learned]).astype(d.dtype)
        found = (g - unit * np.mean(g * unit, -1, keepdims=True)) / root
        of_learned = None if learned is None else np.where(none, 0, d * unit)
    return np.where(none, 0, found).astype(d.dtype), of_learned


def _cos_and_sin(rotary: Rotary, role: str, rows: Array, known: Mapping[str, Any], dtype: Any) -> tuple[Array, Array]:
    """Cosine and sine of the angles of rows, [n, pairs]."""
    angles = _angles(rotary, role, rows, known).astype(np.float64)
    return np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)


def turned(x: Array, cos: Array, sin: Array, pairs: tuple[int, int]) -> Array:
    """Rows [..., D] whose first columns are turned, pair by pair, by angles of which this is cosine and sine, [..., pairs].

    >>> turned(np.array([1.0, 2.0, 0.0, 0.0, 9.0]), np.zeros(2), np.ones(2), (1, 2)).tolist()
    [0.0, 0.0, 1.0, 2.0, 9.0]
    """
    step, distance = pairs
    count = cos.shape[-1]
    left = slice(0, count * step, step)
    right = slice(distance, distance + count * step, step)
    found = x.copy()
    with np.errstate(all="ignore"):
        found[..., left] = x[..., left] * cos - x[..., right] * sin
        found[..., right] = x[..., right] * cos + x[..., left] * sin
    return found


def _angles(rotary: Rotary, role: str, rows: Array, known: Mapping[str, Any]) -> Array:
    """The angles of rows, float32 [n, pairs]."""
    if table := rotary.table(role):
        x = np.asarray(known[table], np.float32)
        x = x[min(int(known["b"]), len(x) - 1)] if x.ndim == 3 else x
        return np.broadcast_to(x, (known[LENGTHS[role]], x.shape[1]))[rows]
    positions = rows + (known["kv_len"] - known["q_len"] if INDICES[role] == "q_idx" else 0)
    return positions.astype(np.float32)[:, None] * np.array(rotary.frequencies, np.float32)
