"""Writes docs/walk.md anew: the examples stay, and what they print becomes what they print now. Those that agree stay as they are.

python docs/walk.py
"""

import doctest
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

PAGE = Path(__file__).parent / "walk.md"
_Raised = tuple[type[BaseException], BaseException, TracebackType]


class _Runner(doctest.DocTestRunner):
    """Runs examples, and keeps what was printed where that is something else than the page says."""

    def __init__(self) -> None:
        super().__init__()
        self.printed: list[tuple[doctest.Example, str]] = []

    def report_failure(self, out: Any, test: doctest.DocTest, example: doctest.Example, got: str) -> None:  # noqa: ARG002
        self.printed.append((example, got))

    def report_unexpected_exception(self, out: Any, test: doctest.DocTest, example: doctest.Example, exc_info: _Raised) -> None:  # noqa: ARG002
        got = f"Traceback (most recent call last):\n{''.join(traceback.format_exception_only(exc_info[1]))}"
        if got != example.want:
            self.printed.append((example, got))


def written(page: str) -> str:
    """The page with what its examples print now.

    >>> written("```python\\n>>> 1 + 1\\n3\\n\\n```\\n")
    '```python\\n>>> 1 + 1\\n2\\n\\n```\\n'
    """
    runner, lines = _Runner(), page.splitlines(keepends=True)
    test = doctest.DocTestParser().get_doctest(page, {}, "page", None, 0)
    for example in test.examples:
        example.exc_msg = None  # so that an exception is told as such, expected or not
    runner.run(test, out=lambda _: None)
    for example, got in reversed(runner.printed):
        begin = example.lineno + example.source.count("\n")
        lines[begin : begin + example.want.count("\n")] = [got]
    return "".join(lines)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
