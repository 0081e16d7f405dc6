"""Masks and scores as texts: those of functions are traced."""

from typing import Any

from flashgen.errors import CallError
from flashgen.tracing import trace


def as_texts(mask: Any, score: Any, values: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """Mask and score as texts, and the values of a call with what functions captured. Raises SpecError, CallError."""
    if callable(mask) or callable(score):
        mask, score, values = _traced(mask, score, values)
    if not (isinstance(mask, str) and isinstance(score, str)):
        raise _no_text(*(("score", score) if isinstance(mask, str) else ("mask", mask)))
    return mask, score, values


def _traced(mask: Any, score: Any, values: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """Mask and score, of which one is a function, as texts, and the values of the call with what the functions captured. Raises SpecError,
    CallError."""
    found = trace(*(x if callable(x) else None for x in (mask, score)))
    hidden = [text for text in (mask, found.mask) if isinstance(text, str) and text != "full"]
    if twice := sorted(values.keys() & found.values.keys()):
        raise CallError(f"{twice[0]} is given, and the function has its own: leave the keyword out, or rename one of them")
    return " & ".join(f"({text})" for text in hidden) or "full", found.score if callable(score) else score, values | found.values


def _no_text(name: str, given: Any) -> CallError:
    """The refusal of a mask or score that is no expression."""
    what = f"{name} is a {type(given).__name__}: expected an expression as text, as {'causal' if name == 'mask' else 's'!r}"
    return CallError(f"{what}. An array is read by one: attention(q, k, v, 'causal & m[q_idx, kv_idx]', m=m)")
