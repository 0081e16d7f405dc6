"""The axes of tensors: a number, a word for an extent of the call, a name that an array binds, or an expression of words and names."""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from flashgen.errors import nearest
from flashgen.spec.words import value_name_fault

if TYPE_CHECKING:
    from flashgen.spec.tensors import Tensor

Axis = str | int
WORDS = ("b", "hq", "hk", "q_len", "kv_len")
ALIASES = {"q_words": "(q_len + 31) // 32"}  # a bit a query
MISSPELT = 0.8  # likeness to a word from which on a name is taken for a mistake


def fault(axis: str) -> tuple[str, str]:
    """The reason why a text is no axis, and what to do; both empty where it is one, as far as its names tell."""
    if axis in WORDS or not axis.isidentifier():
        return "", ""
    if close := nearest(axis, (*WORDS, *ALIASES), MISSPELT):
        return "is no axis", f"did you mean {close[0]!r}?"
    why = value_name_fault(axis)
    return (why, "a word of a call, or a name of your own that the array binds") if why else ("", "")


def named(axis: Axis) -> bool:
    """True of a name that an array binds."""
    return isinstance(axis, str) and axis.isidentifier() and axis not in WORDS


def computed(axis: Axis) -> bool:
    """True of an expression."""
    return isinstance(axis, str) and not axis.isidentifier()


def extent(tensor: "Tensor", i: int) -> Axis:
    """The name of an axis' extent in kernels: as the spec calls it, or where an array alone tells it, a member of Params."""
    axis = tensor.shape[i]
    return f"extent_{tensor.name}_{i}" if named(axis) or computed(axis) else axis


def in_pieces(word: str, entries: int) -> str:
    """An axis with a place for every so many entries of another, the last for what is left.

    >>> in_pieces("kv_len", 32)
    'kv_len / 32'
    """
    return f"{word} / {entries}"


def pieces(axis: Axis) -> tuple[str, int]:
    """The word that an axis is made of, and the entries of that for which it has a place: 1 where it is no axis of pieces.

    >>> pieces("kv_len / 32")
    ('kv_len', 32)
    """
    word, _, entries = str(axis).partition(" / ")
    return word, int(entries or 1)


def names(axis: Axis) -> frozenset[str]:
    """The words and names that an axis is made of."""
    return frozenset(re.findall(r"[A-Za-z]\w*", axis)) if isinstance(axis, str) else frozenset()


def bound(shapes: Iterable[tuple[Axis, ...]]) -> tuple[str, ...]:
    """The names that arrays of these shapes bind."""
    return tuple(dict.fromkeys(str(axis) for shape in shapes for axis in shape if named(axis)))
