"""Writes `docs/variants.md`, the table of the specs that ship.

python docs/variants.py
"""

import functools
import json
import re
from itertools import groupby
from pathlib import Path

import numpy as np

from flashgen.cli.picture import in_characters
from flashgen.cli.work import classes, read_values
from flashgen.plan import plan
from flashgen.spec import Spec
from flashgen.spec.files import load
from flashgen.spec.shipped import Shipped, library

PAGE = Path(__file__).parent / "variants.md"
MEASURED = Path(__file__).parents[1] / "benchmarks" / "results" / "library_NVIDIA_H200.json"
LENGTH, DOCUMENT = 1024, 400  # tokens of a picture, and of a document in it
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

Mask: the tiles of 1,024 queries and keys on an H200, ids of documents of 400 tokens: `█` no mask code, `▒` the mask is tested, `·` never
loaded. Price: the time of a call over that of causal attention of its head dims, heads and dtype, {batch} sequences of {length} tokens
({measured}), of those specs that `benchmarks/library.py` has timed on that card.
"""


@functools.cache
def page() -> str:
    """The whole page: a section a folder, a row a spec."""
    measured = json.loads(MEASURED.read_text(encoding="utf-8"))
    prices = {row["spec"]: row["causal"] for row in measured["rows"]}
    where = f"{measured['gpu']}, driver {measured['driver']}, commit {measured['commit']}"
    sections = [HEAD.format(measured=where, batch=measured["batch"], length=f"{measured['length']:,}")]
    for folder, members in groupby(library().values(), lambda shipped: shipped.folder):
        rows = [f"## {FOLDERS[folder]}\n", "| spec | what it is for | lines | mask | price | paper |", "|---|---|---|---|---|---|"]
        sections.append("\n".join([*rows, *(_row(member, prices) for member in members)]) + "\n")
    return "\n".join(sections)


def _row(shipped: Shipped, prices: dict[str, float]) -> str:
    spec = load(shipped.path)
    link = "/".join(filter(None, ("../specs", shipped.folder, shipped.path.name)))
    paper = re.sub(r"arXiv:(\d{4}\.\d{4,5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", shipped.paper)
    price = f"{prices[shipped.name]:.2f}" if shipped.name in prices else ""
    return f"| [{shipped.name}]({link}) | {shipped.purpose} | {_lines(shipped.keys)} | {_picture(spec)} | {price} | {paper} |"


def _picture(spec: Spec) -> str:
    """The tiles of a mask, a line of code a row."""
    values = read_values(spec, (), LENGTH, LENGTH)
    for tensor in spec.tensors:
        if tensor.dtype in ("int32", "int64") and tensor.shape[-1] in ("q_len", "kv_len"):
            values[tensor.name] = np.broadcast_to(np.arange(LENGTH) // DOCUMENT, values[tensor.name].shape).astype(tensor.dtype)
    found = classes(plan(spec, "sm_90a"), LENGTH, LENGTH, values)
    return "<br>".join(f"`{line}`" for line in in_characters(found, height=8, width=8))


def _lines(keys: str) -> str:
    """The lines that make the variant, as code in a cell; comments are left to the file."""
    lines = [re.sub(r"  +#.*", "", line) for line in keys.splitlines() if not line.startswith(SAME)]
    return "<br>".join(f"`{line.strip()}`".replace("|", "\\|") for line in lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
