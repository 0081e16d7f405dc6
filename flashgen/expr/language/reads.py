"""At which indices expressions read the tensors of a spec."""

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from flashgen.expr.language.nodes import Load, Name, Node, walk
from flashgen.expr.language.read import read

if TYPE_CHECKING:
    from flashgen.spec import Spec

EXTENT_OF = {"b": "b", "h": "hq", "hk": "hk", "q_idx": "q_len", "kv_idx": "kv_len"}  # the axis that an index of a call runs over


@lru_cache(1024)
def indices(spec: "Spec") -> Mapping[str, tuple[tuple[Node, ...], ...]]:
    """The indices of each axis of each tensor, by name.

    >>> from flashgen.spec import Spec
    >>> rows = {"m": {"shape": ["q_len", "kv_len"], "dtype": "bool"}}
    >>> [over(axis) for axis in indices(Spec(dtype="float16", head_dim=64, mask="m[q_idx, kv_idx - 1]", tensors=rows))["m"]]
    [('q_idx',), ()]
    """
    parsed = read(spec)
    loads = [n for node in (*parsed.parts.values(), *parsed.tables) for n in walk(node) if isinstance(n, Load)]
    return {t.name: tuple(zip(*(load.indices for load in loads if load.tensor == t.name), strict=True)) for t in spec.tensors}


def names_index(spec: "Spec", index: str) -> bool:
    """True if an expression of the spec depends on an index of the call.

    >>> from flashgen.spec import Spec
    >>> names_index(Spec(dtype="float16", head_dim=64, mask="kv_idx < 5 * (b + 1)"), "b")
    True
    """
    parsed = read(spec)
    nodes = [n for node in (*parsed.parts.values(), *parsed.tables) for n in walk(node)]
    return any(isinstance(node, Name) and node.name == index for node in nodes)


def over(axis: tuple[Node, ...]) -> tuple[str, ...]:
    """Those of EXTENT_OF that index an axis exactly: it has their extent, or 1, for all alike. Others are clamped to the axis."""
    return tuple(sorted({index.name for index in axis if isinstance(index, Name) and index.name in EXTENT_OF}))
