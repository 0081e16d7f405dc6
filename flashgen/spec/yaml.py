"""Reads YAML 1.2, each value with its position. A spec is untrusted: nesting and expansion are bounded."""

from collections.abc import Iterator
from typing import Any, NoReturn

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.reader import ReaderError

from flashgen.errors import Position, SpecError
from flashgen.spec.model import KEY, Path
from flashgen.spec.text import Text

MAX_DEPTH = 8
MAX_MESSAGE = 160
MAX_VALUES = 10_000  # aliases expanded
HINTS = {  # to what ruamel.yaml says
    "could not find expected ':'": "a line is key: value, with a blank after the colon",
    "mapping values are not allowed here": "one key: value a line, all at the same indentation; a text that has ': ' in it wants quotes",
    "found unexpected end of stream": "close the quote",
    "expected ',' or ']', but got '<stream end>'": "close the bracket",
    "expected ',' or '}', but got '<stream end>'": "close the brace",
}
EXAMPLE = "a spec has at least two lines: dtype: bfloat16, and head_dim: 128"


class Reader:
    """Composes one document from ruamel's events, which unlike its nodes come one by one and do not recurse."""

    def __init__(self, text: Text):
        self.text = text
        self.positions: dict[Path, Position] = {}
        self.yaml = YAML(typ="safe", pure=True)
        self.events = self._events()
        self.values = 0
        self.anchors: dict[str, tuple[Any, int]] = {}  # value, and how many values it is

    def _events(self) -> Iterator[Event]:
        index = 0
        try:
            for event in self.yaml.parse(self.text.text):
                index = event.end_mark.index
                yield event
        except MarkedYAMLError as error:
            marks = [mark.index for mark in (error.problem_mark, error.context_mark) if mark] or [index]
            beyond = marks[0] >= len(self.text.text.rstrip())  # what is open at the end began at the context
            self._syntax(error.problem or "not YAML", marks[-1] if beyond else marks[0])
        except ReaderError as error:
            self._syntax(f"character U+{error.character:04X} is not allowed", error.position)
        except (YAMLError, ValueError, OverflowError) as error:  # the last two: \U escapes beyond Unicode, versions that are no numbers
            self._syntax(f"not YAML: {error}", index)

    def _syntax(self, problem: str, index: int) -> NoReturn:
        position = self.text.at(index)
        if "\t" in position.text[: position.column]:
            raise SpecError(
                "a tab where YAML wants spaces", position.shift(position.text.index("\t") + 1 - position.column), "indent with spaces"
            )
        raise SpecError(
            problem[:MAX_MESSAGE],
            position,
            HINTS.get(problem, "keys of one mapping begin at the same column; text with special characters wants quotes"),
        )

    def _fail(self, message: str, event: Event, hint: str = "") -> NoReturn:
        raise SpecError(message[:MAX_MESSAGE], self.text.at(event.start_mark.index), hint)

    def document(self) -> dict[str, Any]:
        """The keys and values of the document. Raises SpecError."""
        next(self.events)
        start = next(self.events)
        if isinstance(start, StreamEndEvent):
            raise SpecError("the file is empty", self.text.at(0), EXAMPLE)
        assert isinstance(start, DocumentStartEvent)
        if start.version or start.tags:
            self._fail("a YAML directive", start, "remove the line that starts with %; specs are YAML 1.2")
        first = next(self.events)
        if not isinstance(first, MappingStartEvent):
            self._fail("expected keys and values", first, EXAMPLE)
        spec = self._value(first, ())
        next(self.events)
        end = next(self.events)
        if not isinstance(end, StreamEndEvent):
            self._fail("a second document", end, "one spec a file: remove the ---")
        assert isinstance(spec, dict)
        return spec

    def _value(self, event: Event, path: Path) -> Any:
        before = self.values
        self.values += 1
        self.positions[path] = self.text.at(event.start_mark.index)
        if len(path) > MAX_DEPTH:
            self._fail(f"nested deeper than {MAX_DEPTH}", event, "the deepest key of a spec is tensors: {name: {shape: [hq]}}")
        if isinstance(event, AliasEvent):
            return self._alias(event)
        assert isinstance(event, ScalarEvent | SequenceStartEvent | MappingStartEvent)
        if event.tag:
            self._fail(f"a tag: {event.tag}", event, "remove it; in expressions, not is ~")
        match event:
            case ScalarEvent():
                value = self._scalar(event)
                if isinstance(value, str):
                    start = event.start_mark.index + (len(event.anchor) + 1 if event.anchor else 0)
                    self.positions[path] = self.text.value(start, event.end_mark.index, value)
            case SequenceStartEvent():
                value = self._list(path)
            case _:
                value = self._mapping(path)
        if event.anchor:
            self.anchors[event.anchor] = value, self.values - before
        self._bound(event)
        return value

    def _bound(self, event: Event) -> None:
        if self.values > MAX_VALUES:
            self._fail(f"more than {MAX_VALUES} values", event, "aliases count as what they stand for")

    def _alias(self, event: AliasEvent) -> Any:
        if event.anchor not in self.anchors:
            self._fail(f"no anchor &{event.anchor} before this alias", event, "text that begins with * wants quotes")
        value, count = self.anchors[event.anchor]
        self.values += count
        self._bound(event)
        return value

    def _list(self, path: Path) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self.events), SequenceEndEvent):
            items.append(self._value(event, (*path, len(items))))
        return items

    def _mapping(self, path: Path) -> dict[str, Any]:
        items: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        while not isinstance(event := next(self.events), MappingEndEvent):
            key = self._key(event)
            key_path = (*path, key, KEY)
            if key_path in self.positions:
                self._fail(f"duplicate key {key!r}", event, f"it is on line {self.positions[key_path].line} already: remove one")
            self.positions[key_path] = self.text.at(event.start_mark.index)
            value = self._value(next(self.events), (*path, key))
            if value is None:
                self.positions[(*path, key)] = self.positions[key_path]  # ruamel places an empty value on the next line
            if key == "<<" and isinstance(value, dict):
                merged = value
            else:
                items[key] = value
        return {**merged, **items}

    def _key(self, event: Event) -> str:
        key = self._scalar(event) if isinstance(event, ScalarEvent) and not event.tag and not event.anchor else None
        if not isinstance(key, str):
            self._fail("expected a name as key", event, "a key is one word: mask: causal")
        return key

    def _scalar(self, event: ScalarEvent) -> Any:
        """The value by the rules of YAML 1.2 for plain scalars; dates stay text."""
        text: str = event.value
        if event.style is None:
            tag = str(self.yaml.resolver.resolve(ScalarNode, text, (True, False))).rpartition(":")[2]
            if tag in ("int", "float", "bool", "null"):
                try:
                    return getattr(self.yaml.constructor, f"construct_yaml_{tag}")(ScalarNode(tag, text))
                except ValueError:
                    self._fail(f"not a number: {text[:40]}", event)
        return text
