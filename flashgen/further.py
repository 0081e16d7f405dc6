"""The words of a call without a spec besides mask and score, as one text: weight, output, let, norm and rotary."""

import functools
import json
from collections.abc import Mapping
from typing import Any

from flashgen.errors import CallError

WORDS = ("weight", "output", "let", "norm", "rotary")
_ROWS = {"query": "q_len", "key": "kv_len"}


def further(
    weight: str | None, output: str | None, let: Mapping[str, str] | None, norm: Mapping[str, Any] | None, rotary: Mapping[str, Any] | None
) -> str:
    """The words that are given, as a text. Raises CallError for what is none of a spec.

    >>> further(None, "o * scales[h]", None, None, {"kind": "halves", "base": 10000.0})
    '{"output": "o * scales[h]", "rotary": {"base": 10000.0, "kind": "halves"}}'
    """
    if weight is None and output is None and let is None and norm is None and rotary is None:  # as of most calls, each of which asks
        return ""
    given = {word: x for word, x in zip(WORDS, (weight, output, let, norm, rotary), strict=True) if x is not None}
    for word, value in given.items():
        text = word in ("weight", "output")
        if not isinstance(value, str if text else Mapping):
            example = "an expression as text" if text else "a mapping, as in a spec"
            raise CallError(
                f"{word} is a {type(value).__name__}: expected {example}. An array that an expression reads has a name of its own"
            )
    try:
        return json.dumps({word: x if isinstance(x, str) else dict(x) for word, x in given.items()}, sort_keys=True) if given else ""
    except TypeError as error:
        hint = "it takes numbers and texts; an array is a keyword of the call, named there"
        raise CallError(
            f"{', '.join(given)}: {str(error).removesuffix(' is not JSON serializable')} is no value of a spec: {hint}"
        ) from None


@functools.lru_cache(1024)
def keys(text: str) -> dict[str, Any]:
    """The keys of a spec that a text of `further` stands for."""
    return json.loads(text) if text else {}


@functools.lru_cache(1024)
def expressions(text: str) -> tuple[str, ...]:
    """The expressions among them."""
    found = keys(text)
    return (*(found[word] for word in ("weight", "output") if word in found), *map(str, found.get("let", {}).values()))


@functools.lru_cache(1024)
def embedded(text: str) -> dict[str, str]:
    """The arrays that norm and rotary name, each with the axis of its rows, "" of columns alone.

    >>> embedded('{"norm": {"query": "w"}, "rotary": {"angles": {"key": "turns"}, "kind": "halves"}}')
    {'w': '', 'turns': 'kv_len'}
    """
    norm, rotary = keys(text).get("norm", {}), keys(text).get("rotary", {})
    angles = rotary.get("angles") or {}
    columns = {norm[side]: "" for side in _ROWS if isinstance(norm.get(side), str)}
    return columns | {angles[side]: rows for side, rows in _ROWS.items() if isinstance(angles.get(side), str)}


def shape(rows: str, extents: tuple[int, ...]) -> tuple[str | int, ...]:
    """The axes that a spec declares for such an array, by the axis of its rows."""
    last = tuple(map(int, extents[-1:]))
    return (*("b",) * (len(extents) - 2), rows, *last) if rows else last
