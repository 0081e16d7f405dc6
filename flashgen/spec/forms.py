"""The forms a value may take: each function takes what was given and returns the plain value, or refuses it with the fix."""

import math
from collections.abc import Callable, Iterable
from typing import Any, TypeGuard

import numpy as np

from flashgen.dtypes import float32, float32_fault, float32_text
from flashgen.errors import did_you_mean
from flashgen.spec import axes
from flashgen.spec.embedding import ROLES
from flashgen.spec.faults import expected, refusal
from flashgen.spec.geometry import CACHES
from flashgen.spec.layout import LAYOUTS
from flashgen.spec.outputs import OUTPUTS
from flashgen.spec.softmax import SCHEDULES, SOFTMAXES, instead
from flashgen.spec.words import free_name, let_name_fault, name_fault, value_name_fault

MAX_RANK = 8
MAX_SHARES = 1024
MAX_PAGE = 256
INT32 = 2**31 - 1


def _is_int(given: object) -> TypeGuard[int]:
    return isinstance(given, int) and not isinstance(given, bool)


def choice(*words: str | int, hint: Callable[[str, Iterable[str]], str] = did_you_mean) -> Callable[[object], object]:
    """A check that a value is one of the words, of its type. `hint` makes one of a text that is none of them, and of the words."""

    def check(given: object) -> object:
        if any(given == word and type(given) is type(word) for word in words):
            return given
        listed = " or ".join(filter(None, (", ".join(map(str, words[:-1])), str(words[-1]))))
        raise expected(listed, given, hint(given, list(map(str, words))) if isinstance(given, str) else "")

    return check


def layout(given: object) -> object:
    """The name of a layout."""
    return choice(*LAYOUTS)(given)


def element(*dtypes: str) -> Callable[[object], object]:
    """An element type; arrays of one that NumPy has beside them have to be cast."""

    def cast(given: str, known: Iterable[str]) -> str:
        if given not in np.sctypeDict:
            return did_you_mean(given, known)
        to = "int32" if np.dtype(given).kind in "iu" and "int32" in dtypes else "float32"
        return f"write {to}, and cast what is passed: x.astype('{to}') (PyTorch: x.to(torch.{to}))"

    return choice(*dtypes, hint=cast)


def integer(given: object) -> int:
    """An integer. Raises a refusal for anything else."""
    if not _is_int(given):
        raise expected("an integer", given)
    return given


def flag(given: object) -> bool:
    """True or false. Raises a refusal for anything else."""
    if not isinstance(given, bool):
        raise expected("true or false", given)
    return given


def positive(given: object) -> int:
    """An integer from 1 to what 32 bits hold."""
    if not _is_int(given) or not 0 < given <= INT32:
        raise expected(f"an integer from 1 to {INT32}", given)
    return given


def number(given: object) -> int | float:
    """An int of 32 bits, or a float that float32 holds."""
    if _is_int(given):
        if not -INT32 - 1 <= given <= INT32:
            raise expected(f"an integer from {-INT32 - 1} to {INT32}", given, "integers have 32 bits; a float is written with a point")
        return int(given)
    if not isinstance(given, float):
        raise expected("a number", given)
    if not math.isfinite(float32(given)):
        raise expected("a finite number of float32", given)
    if fault := float32_fault(given):
        raise refusal(f"{given}: {fault}", "write 0, or a larger number")
    return float32(given)


def auto(given: object) -> int | None:
    """An integer, or None for `auto`."""
    if given == "auto":
        return None
    if not _is_int(given):
        raise expected("auto or an integer", given)
    return given


def split(given: object) -> int | str:
    """`invariant`, `auto`, or a number of shares."""
    if given in ("invariant", "auto"):
        return str(given)
    if not _is_int(given) or not 1 <= given <= MAX_SHARES:
        raise expected(f"invariant, auto or an integer from 1 to {MAX_SHARES}", given)
    return given


def name(given: object) -> str:
    """The name of a spec."""
    return _named(given, name_fault)


def value_name(given: object) -> str:
    """The name of a param or tensor."""
    return _named(given, value_name_fault)


def let_name(given: object) -> str:
    """The name of a let."""
    return _named(given, let_name_fault)


def _named(given: object, fault: Callable[[str], str]) -> str:
    if not isinstance(given, str):
        raise expected("a name", given)
    if why := fault(given):
        raise refusal(f"{given[:64]!r} {why}", f"for example {free_name(given, fault)}")
    return given


def expression(given: object) -> str:
    """An expression as one line. flashgen.expr judges its grammar and names."""
    if not isinstance(given, str):
        raise expected("an expression as text", given, f'write it as text: "{given}"' if isinstance(given, int | float) else "")
    text = " ".join(given.split())
    if not text:
        raise refusal("the expression is empty")
    if "#" in text:  # would end more than its line, now that there is one
        raise refusal("a comment inside an expression", "put it on a line of its own, outside the text", offset=text.index("#"))
    return text


def mask(given: object) -> str:
    """A mask as one line of text."""
    if given is None or isinstance(given, bool):
        raise expected("an expression as text", given, "a mask that hides nothing is mask: full")
    return expression(given)


def scale(given: object) -> str:
    """A scale as an expression; a number becomes its text."""
    if not isinstance(given, int | float):
        return expression(given)
    factor = number(given)
    return float32_text(factor) if isinstance(factor, float) else str(factor)


def axis(given: object) -> str | int:
    """An axis of a tensor: a positive integer or a word."""
    if isinstance(given, bool) or not isinstance(given, int | float | str):
        raise expected(
            "a number of entries, a word of a call, a name or an expression", given, "for example hq, 64, groups or 2 * kv_len - 1"
        )
    if not isinstance(given, str):
        return positive(given)
    text = axes.ALIASES.get(given) or expression(given)
    why, hint = axes.fault(text)
    if why:
        raise refusal(f"{text[:64]!r} {why}", hint)
    return text


def shape(given: object) -> object:
    """A list of axes, whose entries are judged one by one."""
    if not isinstance(given, list | tuple) or not 1 <= len(given) <= MAX_RANK:
        raise expected(f"a list of 1 to {MAX_RANK} axes", given, "for example [hq] or [b, kv_len]")
    return given


def head_dim(given: object) -> object:
    """A mapping of qk and v; one number stands for both."""
    if _is_int(given):
        return {"qk": given, "v": given}
    return _mapping("an integer or {qk: 192, v: 128}", given)


def block(given: object) -> object:
    """A mapping of m and n; empty for `auto`."""
    return {} if given == "auto" else _mapping("auto or {m: 128, n: 128}", given)


def blocks(given: object) -> object:
    """A mapping, whose keys are judged one by one."""
    return _mapping("{m: 128, n: 64, lists: idx}", given)


def cache(given: object) -> object:
    """A mapping, whose keys are judged one by one; words are judged before."""
    return _mapping(f"{', '.join(CACHES)} or {{page: 16}}", given)


def norm(given: object) -> object:
    """A mapping, whose keys are judged one by one."""
    return _mapping("{eps: 1.0e-6, query: wq, key: wk}", given)


def rotary(given: object) -> object:
    """A mapping, whose keys are judged one by one."""
    return _mapping("{kind: halves, base: 10000.0}", given)


def roles(given: object) -> tuple[str, ...]:
    """q, k or both, in that order."""
    words = list(map(str, given)) if isinstance(given, list | tuple) else []
    if not words or not set(words) <= set(ROLES) or len(set(words)) < len(words):
        raise expected("[q, k], [q] or [k]", given)
    return tuple(role for role in ROLES if role in words)


def page(given: object) -> int:
    """A power of two, the keys of a page."""
    if not _is_int(given) or not 1 <= given <= MAX_PAGE or given & (given - 1):
        raise expected(f"a power of two from 1 to {MAX_PAGE}", given)
    return given


def schedule(given: object) -> object:
    """A mapping of what is pinned; names are judged before."""
    if isinstance(given, str):
        raise refusal(f"unknown schedule {given[:64]!r}", did_you_mean(given, SCHEDULES))
    return _mapping("auto, a name or {passes: 1, normalize: end}", given)


def softmax(given: object) -> object:
    """A mapping of a sink; names are judged before."""
    if isinstance(given, str):
        raise refusal(f"unknown softmax {given[:64]!r}", instead(given) or did_you_mean(given, SOFTMAXES))
    return _mapping("a name or {sink: sinks[h]}", given)


def rescale(given: object) -> object:
    """`always`, `lazy`, or the threshold of `{lazy: 8}`."""
    if given in ("always", "lazy"):
        return given
    if not isinstance(given, dict) or list(given) != ["lazy"]:
        raise expected("always, lazy or {lazy: 8}", given)
    threshold = float(number(given["lazy"]))
    if threshold < 0:
        raise refusal(f"lazy: expected a threshold of 0 or more, got {threshold}", "it counts log2 units: {lazy: 8}")
    return threshold


def outputs(given: object) -> object:
    """The outputs in the order of OUTPUTS."""
    words = list(map(str, given)) if isinstance(given, list | tuple) else []
    if not set(words) <= OUTPUTS.keys() or "o" not in words or len(set(words)) < len(words):
        raise expected(f"o and any of {', '.join(word for word in OUTPUTS if word != 'o')}, as [o, lse]", given)
    return tuple(word for word in OUTPUTS if word in words)


def _mapping(what: str, given: object) -> dict[Any, Any]:
    if not isinstance(given, dict):
        raise expected(what, given)
    return given
