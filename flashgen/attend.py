"""`attention`: a call without a spec, which it writes from what it is given."""

import functools
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from flashgen.api import Attention
from flashgen.dtypes import ATTENTION_DTYPES
from flashgen.errors import CallError
from flashgen.runtime.arguments import rows_first
from flashgen.runtime.arrays import Layout, Like, adopt, liken
from flashgen.spec import Spec


def attention(
    q: Any,
    k: Any,
    v: Any,
    mask: str = "causal",
    *,
    score: str = "s",
    scale: str | float | None = None,
    layout: Literal["bshd", "bhsd"] = "bshd",
    lse: bool = False,
    out: Any = None,
    **values: Any,
) -> Any:
    """o = softmax(score(scale * q k^T) where mask) v, compiled at the first call with these head dims, dtype and expressions.

    >>> attention(q, k, v, "causal & window(255, 0)")
    >>> attention(q, k, v, score="softcap * tanh(s / softcap)", softcap=50.0)
    >>> o, lse = attention(q, k, v, score="s + slopes[h] * (kv_idx - q_idx)", slopes=slopes, lse=True)

    q: [B, Sq, Hq, Dqk], k: [B, Sk, Hk, Dqk], v: [B, Sk, Hk, Dv], o: [B, Sq, Hq, Dv], S and H swapped for layout bhsd; lse: [B, Hq, Sq]
    float32, natural log. `values`: what the expressions name, numbers and arrays. Raises SpecError, CallError, PlanError, BackendError.
    """
    qkv = liken(adopt(q, "q"), "q"), liken(adopt(k, "k"), "k"), liken(adopt(v, "v"), "v")
    kinds = tuple([(name, _kind(name, value)) for name, value in sorted(values.items())]) if values else ()
    attn = _for(qkv, mask, score, None if scale is None else str(scale), layout, ("o", "lse") if lse else ("o",), kinds)
    return attn(q, k, v, out=out, **values)


_Kind = tuple[int | float, str] | Like


def _kind(name: str, value: Any) -> _Kind:
    """What a keyword declares: a default of the value's type and sign, and that type; or what an array is like.

    An array without axes is the number that it holds.
    """
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, (int, float, np.number)):  # a union takes three times as long
        sign = int(value > 0) - int(value < 0)
        return (sign, "int") if isinstance(value, int | np.integer) else (float(sign), "float")
    return liken(adopt(value, name), name)


@functools.lru_cache(1024)
def _for(
    qkv: tuple[Like, ...],
    mask: str,
    score: str,
    scale: str | None,
    layout: str,
    outputs: tuple[str, ...],
    kinds: tuple[tuple[str, _Kind], ...],
) -> Attention:
    """What attends on q, k, v and keywords like these. Raises CallError."""
    layouts = {like.name: like.layout for like in qkv}
    dtype = layouts["q"].dtype
    for name, found in layouts.items():
        if len(found.shape) != 4:
            raise CallError(f"{name} has {len(found.shape)} axes, shape {list(found.shape)}: expected 4, {list(layout.upper())}")
    if dtype not in ATTENTION_DTYPES:
        raise CallError(
            f"q is {dtype}: attention takes {', '.join(ATTENTION_DTYPES)}. Cast it, q.astype('float32') (PyTorch: q.to(torch.float32))"
        )
    b, q_len, heads, qk = rows_first(layouts["q"], layout).shape
    _, kv_len, kv_heads, v_columns = rows_first(layouts["v"], layout).shape
    axes = {"b": b, "hq": heads, "hk": kv_heads, "q_len": q_len, "kv_len": kv_len}
    declared = tuple((name, _tensor(kind.layout, axes) if isinstance(kind, Like) else kind) for name, kind in kinds)
    return _compiled(dtype, (qk, v_columns), mask, score, scale, layout, outputs, declared)


def _tensor(layout: Layout, axes: Mapping[str, int]) -> tuple[tuple[str | int, ...], str]:
    """The shape and dtype that a spec declares for such an array."""
    words = {n: word for word, n in reversed(list(axes.items()))}
    kinds = {"f": "float32", "b": "bool" if layout.dtype == "bool" else "float32"}
    return tuple(words.get(n, n) for n in layout.shape), kinds.get(layout.dtype[0], "int32")


@functools.lru_cache(256)
def _compiled(
    dtype: str,
    dims: tuple[int, int],
    mask: str,
    score: str,
    scale: str | None,
    layout: str,
    outputs: tuple[str, ...],
    declared: tuple[tuple[str, Any], ...],
) -> Attention:
    params = {name: kind[0] for name, kind in declared if not isinstance(kind[0], tuple)}
    tensors = {name: {"shape": list(kind[0]), "dtype": kind[1]} for name, kind in declared if isinstance(kind[0], tuple)}
    head_dim = {"qk": dims[0], "v": dims[1]}
    spec = Spec(
        dtype=dtype,
        head_dim=head_dim,
        mask=mask,
        score=score,
        scale=scale,
        layout=layout,
        outputs=list(outputs),
        params=params,
        tensors=tensors,
    )
    return Attention(spec)
