"""A text and the positions in it."""

import re
from bisect import bisect_right
from dataclasses import dataclass, field, replace

from flashgen.errors import Position


class Text:
    """The text of a file.

    >>> Text("a.yaml", "dtype: float16\\nmask: causal\\n").at(21)
    Position(file='a.yaml', line=2, column=7, text='mask: causal')
    """

    def __init__(self, file: str, text: str):
        self.file, self.text = file, text
        self._starts = [0, *(end.end() for end in re.finditer(r"\r\n|\r|\n", text))]

    def at(self, index: int) -> Position:
        """The position of a character, or of the end."""
        line = bisect_right(self._starts, index) - 1
        start = self._starts[line]
        end = self._starts[line + 1] if line + 1 < len(self._starts) else len(self.text)
        return Position(self.file, line + 1, index - start + 1, self.text[start:end].rstrip("\r\n"))

    def value(self, start: int, end: int, value: str) -> Position:
        """The position of a scalar; `shift` finds the characters of its value, white space counted as one blank."""
        start += _blanks(self.text[start:end])
        return Value(**vars(self.at(start)), within=self, span=(start, end), value=" ".join(value.split()))


@dataclass(frozen=True)
class Value(Position):
    """A scalar's position: that of its quote or block indicator, until shifted into the value."""

    within: Text = field(repr=False, compare=False)
    span: tuple[int, int] = field(repr=False, compare=False)
    value: str = field(repr=False, compare=False)
    offset: int = field(default=0, repr=False, compare=False)

    def shift(self, columns: int) -> Position:
        """The position so many columns further on in the value's text."""
        offset = self.offset + columns
        return replace(self, **vars(self.within.at(self._index(offset))), offset=offset)

    def _index(self, offset: int) -> int:
        """The index of a character in the file; beyond an escape sequence, that of the sequence."""
        text, (at, end) = self.within.text, self.span
        if text[at] in "|>":
            at = text.index("\n", at)
        elif text[at] in "'\"":
            at, end = at + 1, end - 1
        at += _blanks(text[at:end])
        for character in self.value[:offset]:
            if character != " " and character != text[at]:
                break
            at += 1 if character != " " else _blanks(text[at:end])
        return at


def _blanks(text: str) -> int:
    return len(text) - len(text.lstrip())
