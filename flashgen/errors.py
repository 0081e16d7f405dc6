"""The errors that flashgen raises: a mistake in a spec, a plan that cannot be, text that does not compile, a backend that is missing."""

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Position:
    """A position in a text: file, line and column (both from 1), and the line itself.

    >>> print(Position("a.yaml", 3, 7, "mask: causl").excerpt())
      3 | mask: causl
        |       ^
    """

    file: str
    line: int
    column: int
    text: str

    def shift(self, columns: int) -> "Position":
        """The position `columns` to the right."""
        return replace(self, column=self.column + columns)

    def excerpt(self, width: int = 100) -> str:
        """The line with a caret below; of a long line, the part around the caret."""
        first = max(0, self.column - 1 - width // 2) if len(self.text) > width else 0
        shown = self.text[first : first + width].rstrip("\n").expandtabs(1)
        gutter = " " * len(str(self.line))
        return f"  {self.line} | {shown}\n  {gutter} | {' ' * (self.column - 1 - first)}^"


class FlashgenError(Exception):
    """The base of everything flashgen raises on purpose."""


class SpecError(FlashgenError):
    """A mistake in a spec, pointed at. `hint` says what to do.

    >>> print(SpecError("unknown name 'causl'", Position("a.yaml", 3, 7, "mask: causl"), "did you mean 'causal'?"))
    a.yaml:3:7: unknown name 'causl'
      3 | mask: causl
        |       ^
    did you mean 'causal'?
    """

    def __init__(self, message: str, position: Position | None = None, hint: str = ""):
        self.message, self.position, self.hint = message, position, hint
        lines = [f"{position.file}:{position.line}:{position.column}: {message}", position.excerpt()] if position else [message]
        super().__init__("\n".join([*lines, hint] if hint else lines))


class PlanError(FlashgenError):
    """No legal plan: the limit, both numbers, the nearest legal choice."""


class CallError(FlashgenError, ValueError):
    """Arguments of a call that do not fit the spec: the argument, what it is, what it has to be."""


class CompileError(FlashgenError):
    """The CUDA compiler refused emitted text: its log, a numbered excerpt, the path of the file."""


class BackendError(FlashgenError):
    """Something that kernels need is missing or cannot serve the call: driver, NVRTC, headers, compiler."""


def nearest(word: str, known: Iterable[str], alike: float = 0.6, most: int = 3) -> list[str]:
    """The known words that are as much `alike`, from 0 to 1, the nearest first.

    >>> nearest("causl", ["causal", "full"])
    ['causal']
    """
    from difflib import get_close_matches  # which only a mistake needs

    return get_close_matches(word, list(known), most, alike)


def did_you_mean(word: str, known: Iterable[str], alike: float = 0.6) -> str:
    """A hint that names the nearest known word, if it is as much `alike`, from 0 to 1, or all of them, or says that there is none.

    >>> did_you_mean("causl", ["causal", "full"])
    "did you mean 'causal'?"
    """
    known = list(known)
    close = nearest(word, known, alike, 1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}" if known else "there are none here"
