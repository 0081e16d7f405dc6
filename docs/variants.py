"""Writes `docs/variants.md`, the table of the specs that ship.

python docs/variants.py
"""

import re
from itertools import groupby
from pathlib import Path

from flashgen.spec.shipped import Shipped, library

PAGE = Path(__file__).parent / "variants.md"
SAME = ("name:", "dtype:", "outputs:")  # keys that say nothing of a variant
FOLDERS = {
    "": "For any model",
    "biology": "Biology",
    "language": "Language",
    "research": "Research",
    "serving": "Serving",
    "sparse": "Sparse patterns",
    "video": "Video",
    "vision": "Vision",
}
HEAD = """# Variants

The specs that ship, each a file in [`specs/`](../specs). `flashgen check NAME` runs one by its name, `flashgen specs NAME` prints it, and
`flashgen new MINE --like NAME` starts a file of your own from it. The lines are those of the file without its name, dtype and outputs.
`python docs/variants.py` writes this page.
"""


def page() -> str:
    """The whole page: a section a folder, a row a spec."""
    sections = [HEAD]
    for folder, members in groupby(library().values(), lambda shipped: shipped.folder):
        rows = [f"## {FOLDERS[folder]}\n", "| spec | what it is for | lines | paper |", "|---|---|---|---|"]
        sections.append("\n".join([*rows, *map(_row, members)]) + "\n")
    return "\n".join(sections)


def _row(shipped: Shipped) -> str:
    link = "/".join(filter(None, ("../specs", shipped.folder, shipped.path.name)))
    paper = re.sub(r"arXiv:(\d{4}\.\d{4,5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", shipped.paper)
    return f"| [{shipped.name}]({link}) | {shipped.purpose} | {_lines(shipped.keys)} | {paper} |"


def _lines(keys: str) -> str:
    """The lines that make the variant, as code in a cell; comments are left to the file."""
    lines = [re.sub(r"  +#.*", "", line) for line in keys.splitlines() if not line.startswith(SAME)]
    return "<br>".join(f"`{line.strip()}`".replace("|", "\\|") for line in lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
