"""An expression's text and where it stands: Python's parser reads it, and a mistake is told at its line and column."""

import ast
import re

from flashgen.errors import Position, SpecError
from flashgen.expr.language.scope import HINTS, MAX_DEPTH, MAX_TEXT, TITLES, allowed


class Located:
    """One text, which begins at a position."""

    def __init__(self, text: str, position: Position):
        self.text, self.position = text, position
        self.indent = len(text) - len(text.lstrip())

    def tree(self) -> ast.expr:
        """The text as Python's syntax tree. Raises SpecError."""
        if len(self.text) > MAX_TEXT:
            raise self.error(MAX_TEXT, f"an expression of {len(self.text)} characters", f"allowed: {MAX_TEXT}")
        if stray := re.search(r"[^\x20-\x7e\s]", self.text):
            raise self.error(stray.start(), f"unexpected character {stray.group()!r}", "expressions are ASCII")
        try:
            return ast.parse(re.sub(r"\s", " ", self.text).strip(), mode="eval").body
        except SyntaxError as error:
            offset = self.indent + error.offset - 1 if error.offset else len(self.text.rstrip())
            raise self.error(min(offset, len(self.text)), error.msg if self.text.strip() else "an empty expression", allowed()) from None
        except (RecursionError, MemoryError):
            raise self.error(self.indent, "nested too deeply", f"allowed: {MAX_DEPTH} levels") from None

    def error(self, at: ast.AST | int, message: str, hint: str = "") -> SpecError:
        """A mistake at a node, or at so many characters."""
        offset = at if isinstance(at, int) else self.indent + getattr(at, "col_offset", 0)
        before, _, tail = self.text[:offset].rpartition("\n")
        position = self.position.shift(offset)
        if "\n" in self.text[:offset]:
            line = before.count("\n") + 1
            position = Position(self.position.file, self.position.line + line, len(tail) + 1, self.text.split("\n")[line])
        return SpecError(message, position, hint)

    def foreign(self, at: ast.expr | int, kind: type) -> SpecError:
        """The refusal of what Python has and the language has not."""
        return self.error(at, f"{TITLES.get(kind, kind.__name__.lower())} is not part of the language", HINTS.get(kind, allowed()))

    def error_of(self, function: str, message: str, hint: str = "") -> SpecError:
        """A mistake at the first call of a function; at the beginning of a text that does not name it."""
        calls = [n for n in ast.walk(self.tree()) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == function]
        return self.error(calls[0] if calls else self.indent, message, hint)

    def source(self, tree: ast.expr) -> str:
        """The text of a node."""
        return self.text[self.indent + tree.col_offset : self.indent + (tree.end_col_offset or 0)]
