"""The gradients of tensors and params that are sums of numbers which come in any order, and those whose elements get one number a head."""

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from flashgen.expr.language.nodes import V_IDX, Load, Name

if TYPE_CHECKING:
    from flashgen.spec import Spec


def exact_sums(spec: "Spec") -> tuple[str, ...]:
    """The tensors and params whose gradients are summed as integers, because `deterministic: true` asks for the same bits in any order.

    >>> from flashgen.spec import Spec
    >>> table = {"t": {"shape": ["hq", "kv_len"], "dtype": "float32", "grad": True}}
    >>> exact_sums(Spec(head_dim=64, dtype="float16", score="s + t[h, kv_idx]", tensors=table, backward=True, deterministic=True))
    ('t',)
    """
    if not spec.deterministic:
        return ()
    own = own_places(spec)
    return tuple(one.name for one in spec.with_grad if one.name not in own)


@lru_cache(64)
def own_places(spec: "Spec") -> Mapping[str, tuple[str, ...]]:
    """The tensors of whose gradient an element gets one number from each head, each with the indices at which it is read: a name an axis,
    empty where the index is no name. So it is where all that read it read it at the query itself and at the key or the column itself.

    >>> from flashgen.spec import Spec
    >>> bias = {"bias": {"shape": ["hq", "q_len", "kv_len"], "dtype": "float32", "grad": True}}
    >>> own_places(Spec(head_dim=64, dtype="float16", score="s + bias[h, q_idx, kv_idx]", tensors=bias, backward=True))
    {'bias': ('h', 'q_idx', 'kv_idx')}
    """
    own, shapes = dict[str, tuple[str, ...]](), {tensor.name: tensor.shape for tensor in spec.tensors}
    for name, at in places(spec).items():
        if len(at) == 1 and "q_idx" in at[0] and (_at_keys(spec, at[0]) or _at_columns(spec, shapes[name], at[0])):
            own[name] = at[0]
    return own


@lru_cache(64)
def places(spec: "Spec") -> Mapping[str, tuple[tuple[str, ...], ...]]:
    """The indices of each read of each tensor that has a gradient: a name an axis, empty where the index is no name."""
    if not spec.with_grad:
        return {}
    from flashgen.expr.meaning.gradient import derivatives  # which no forward needs

    found = derivatives(spec)
    reads = [by for by in {*found.score, *found.sink, *found.scale, *found.weight, *found.output} if isinstance(by, Load)]
    named = {by: tuple(index.name if isinstance(index, Name) else "" for index in by.indices) for by in reads}
    return {t.name: tuple(named[by] for by in reads if by.tensor == t.name) for t in spec.tensors if t.grad}


def _at_keys(spec: "Spec", indices: tuple[str, ...]) -> bool:
    """True if an index is the key, of sequences that have the keys of an axis each."""
    return "kv_idx" in indices and not spec.geometry.packed


def _at_columns(spec: "Spec", shape: tuple[str | int, ...], indices: tuple[str, ...]) -> bool:
    """True if an index is the column, and its axis has all columns: beyond a shorter one columns meet in the last element."""
    whole = V_IDX in indices and shape[indices.index(V_IDX)] == spec.head_dim.v
    return whole and (not spec.geometry.packed or spec.geometry.joined(shape) is not None)
