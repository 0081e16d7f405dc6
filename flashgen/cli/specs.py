"""`flashgen specs` and `flashgen new`: the library, and a file of one's own that starts from one of its specs."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from rich.text import Text

from flashgen.cli.errors import CommandError, unwritable
from flashgen.cli.terminal import console, plain
from flashgen.cli.terminal import table as lines
from flashgen.spec.shipped import Shipped, shipped
from flashgen.spec.words import name_fault


def table(specs: Sequence[Shipped]) -> None:
    """A table of the library, a folder after the other, a row a spec."""
    rows = lines("spec", "what it is for", "paper")
    for folder, members in groupby(specs, lambda spec: spec.folder):
        rows.add_row(Text(f"\n{folder or 'for any model'}", style="bold"))
        for spec in members:
            rows.add_row(*plain((spec.name, spec.purpose, spec.paper)))
    console().print(rows)


def write(name: str, like: str) -> Path:
    """Writes a file that starts from a shipped spec, and returns its path; nothing is overwritten. Raises SpecError, CommandError.

    `name`: of the spec, or a path that ends in it; the file ends in .yaml.
    """
    start, own = shipped(like), Path(name).name.removesuffix(".yaml")
    if fault := name_fault(own):
        raise CommandError(f"a spec cannot be called {own!r}: it {fault}")
    path = Path(name).with_name(f"{own}.yaml")
    paper = f" ({start.paper})" if start.paper else ""
    head = f"# What {own} is for, in one line.\n# Begun from {start.name}{paper}: {start.purpose}\n"
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(head + start.keys.replace(f"name: {start.name}\n", f"name: {own}\n"))
    except FileExistsError:
        raise CommandError(f"{path} exists already, and stays as it is: give another name, or remove it") from None
    except OSError as error:
        raise unwritable(path, error) from None
    return path
