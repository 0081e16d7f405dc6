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
    if not spec.with_grad:
        return {}
    from flashgen.expr.meaning.gradient import derivatives  # which no forward needs

    found = derivatives(spec)
    reads = {*found.score, *found.sink, *found.scale, *found.weight, *found.output}
    own = dict[str, tuple[str, ...]]()
    for tensor in spec.tensors:
        at = [by.indices for by in reads if isinstance(by, Load) and by.tensor == tensor.name]
        if tensor.grad and len(at) == 1:
            indices = tuple(index.name if isinstance(index, Name) else "" for index in at[0])
            if "q_idx" in indices and (_at_keys(spec, indices) or _at_columns(spec, tensor.shape, indices)):
                own[tensor.name] = indices
    return own


def _at_keys(spec: "Spec", indices: tuple[str, ...]) -> bool:
    """True if an index is the key, of sequences that have the keys of an axis each."""
    return "kv_idx" in indices and not spec.geometry.packed


def _at_columns(spec: "Spec", shape: tuple[str | int, ...], indices: tuple[str, ...]) -> bool:
    """True if an index is the column, and its axis has all columns: beyond a shorter one columns meet in the last element."""
    whole = V_IDX in indices and shape[indices.index(V_IDX)] == spec.head_dim.v
    return whole and (not spec.geometry.packed or spec.geometry.joined(shape) is not None)
