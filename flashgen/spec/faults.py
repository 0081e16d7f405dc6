"""Turns pydantic's list of errors into one SpecError: the first of the text, in words that name the fix."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from flashgen.errors import Position, SpecError, did_you_mean
from flashgen.spec.model import KEY, Path
from flashgen.spec.softmax import instead


def refusal(message: str, hint: str = "", *, offset: int | None = None, within: Path = ()) -> PydanticCustomError:
    """The error that a validator raises: the sentence after the key, what to do, and where below the key or in its text it is."""
    return PydanticCustomError("refused", "{message}", {"message": message, "hint": hint, "offset": offset, "within": within})


def expected(what: str, given: object, hint: str = "") -> PydanticCustomError:
    """The refusal of a value that is of a wrong type or no known word."""
    number = isinstance(given, str) and re.fullmatch(r"[-+]?[0-9.]+([eE][-+]?[0-9]+)?", given)
    return refusal(f"expected {what}, got {shown(given)}", f"write the number without quotes: {given}" if number else hint)


def shown(given: object) -> str:
    """A value as messages name it."""
    match given:
        case None:
            return "nothing"
        case bool():
            return f"the boolean {str(given).lower()}"
        case str():
            return f"the text {given[:40]!r}"
        case int() if abs(given) >= 10**20:
            return "a larger number"
        case int() | float():
            return f"the number {given}"
        case dict():
            return "a mapping"
        case list() | tuple():
            return f"the list {str(list(given))[:40]}"
    return f"a {type(given).__name__}"


def spec_error(error: ValidationError, positions: Mapping[Path, Position], keys: Callable[[Path], Mapping[str, str]]) -> SpecError:
    """The first fault by position, missing keys last. `keys` gives the known keys of a mapping, each with an example."""
    found = [(details["type"] == "missing", _fault(details, positions, keys)) for details in error.errors(include_url=False)]
    return min(found, key=_order)[1]


def _order(found: tuple[bool, SpecError]) -> tuple[bool, int, int]:
    missing, fault = found
    position = fault.position
    return missing, position.line if position else 0, position.column if position else 0


def _fault(details: Any, positions: Mapping[Path, Position], keys: Callable[[Path], Mapping[str, str]]) -> SpecError:
    path: Path = details["loc"]
    match details["type"]:
        case "missing":
            example = keys(path[:-1])[str(path[-1])]
            return SpecError(f"missing key {_dotted(path)!r}", _position(path[:-1], positions), f"for example {path[-1]}: {example}")
        case "extra_forbidden":
            return _unknown(path, positions, keys(path[:-1]))
        case "refused":
            context = details["ctx"]
            path += context["within"]
            position = _position(path, positions)
            if context["offset"] is not None:
                text = position or Position(f"<{_dotted(path)}>", 1, 1, " ".join(details["input"].split()))
                position = text.shift(context["offset"])
            return SpecError(f"{_dotted(path)}: {context['message']}", position, context["hint"])
    wanted = {"dict_type": "a mapping", "model_type": "a mapping", "tuple_type": "a list"}.get(details["type"])
    message = f"expected {wanted}, got {shown(details['input'])}" if wanted else details["msg"]
    return SpecError(f"{_dotted(path)}: {message}", _position(path, positions))


def _unknown(path: Path, positions: Mapping[Path, Position], known: Iterable[str]) -> SpecError:
    word = str(path[-1])
    hint = (instead(word) if path[:-1] == ("softmax",) else "") or did_you_mean(word, known)
    return SpecError(f"unknown key {_dotted(path)!r}", _position((*path, KEY), positions), hint)


def _position(path: Path, positions: Mapping[Path, Position]) -> Position | None:
    """The position of a path; below an alias, that of the alias."""
    while path and path not in positions:
        path = path[:-1]
    return positions.get(path)


def _dotted(path: Path) -> str:
    return ".".join(str(part)[:64] for part in path if part != KEY) or "spec"
