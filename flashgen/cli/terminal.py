"""Standard output for people: as wide as the terminal, or wide enough for any table where it is a file."""

import sys
from collections.abc import Collection
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

_FILE_WIDTH = 160


def console() -> Console:
    """A console on standard output."""
    found = Console(highlight=False, emoji=False)
    if not found.is_terminal:
        found.width = _FILE_WIDTH
    return found


def drawn(fine: str, plain: str) -> str:
    """The characters of a picture: the first ones where standard output can write them, else those of ASCII."""
    try:
        fine.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return plain
    return fine


def table(*columns: str, right: Collection[str] = ()) -> Table:
    """An empty table without lines; `right`: the columns, by name, whose cells are numbers."""
    made = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left")
    return made


def plain(cells: Any) -> list[Text]:
    """Cells as text that rich prints as it is, without markup."""
    return [Text(str(cell)) for cell in cells]
