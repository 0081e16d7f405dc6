"""An emitted text as a page lists it: its parts, its lines, and where a name is defined."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

FIRST = "banner and arguments"  # what stands before the first ruler
_RULER = re.compile(r"// -{10,} (.+)")
_DEFINED = (
    re.compile(r"\s*struct (?:__align__\(\d+\) )?(\w+)"),
    re.compile(r"\bconstexpr [\w ]*\b(\w+) ="),
    re.compile(r"__(?:device|global)__.*?\b(?!__)(\w+)\((?!\d)"),
)


@dataclass(frozen=True)
class Row:
    """A line of the text, its comment apart."""

    line: int
    code: str
    comment: str


@dataclass(frozen=True)
class Part:
    """The lines from one ruler to the next."""

    title: str
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Listing:
    """A text in parts; `defined`: the line of each name's first definition."""

    parts: tuple[Part, ...]
    defined: Mapping[str, int]

    def line(self, names: Iterable[str]) -> int | None:
        """The line that defines the first of these names that the text has."""
        return next((self.defined[name] for name in names if name in self.defined), None)

    def part(self, line: int) -> str:
        """The title of the part that a line is in."""
        return next(part.title for part in self.parts if part.rows[-1].line >= line)


def listing(text: str) -> Listing:
    """The listing of an emitted text.

    >>> found = listing("int x;\\n// ------------ plan\\nconstexpr int STAGES = 2;  // of keys\\n")
    >>> [part.title for part in found.parts], found.line(["STAGES"])
    (['banner and arguments', 'plan'], 3)
    """
    parts: list[tuple[str, list[Row]]] = [(FIRST, [])]
    defined: dict[str, int] = {}
    for nth, line in enumerate(text.splitlines(), 1):
        if ruler := _RULER.fullmatch(line):
            parts.append((ruler[1], []))
        code, slashes, comment = line.partition("//")
        parts[-1][1].append(Row(nth, code, slashes + comment))
        for pattern in _DEFINED:
            if found := pattern.search(code):
                defined.setdefault(found[1], nth)
    return Listing(tuple(Part(title, tuple(rows)) for title, rows in parts), defined)
