"""`flashgen cache`: lists the compiled things that are kept, their size and their place."""

from dataclasses import dataclass
from typing import Any

from flashgen import store
from flashgen.cli.terminal import console, plain
from flashgen.cli.terminal import table as lines

_HOLDS = {"kernels": "kernels by NVRTC", "emulate": "kernels for the CPU by the C++ compiler", store.TEMPLATES: "templates by Jinja"}


@dataclass(frozen=True)
class Kept:
    """The number of entries in one folder of the cache, and their size."""

    folder: str
    entries: int
    bytes: int


def look() -> list[Kept]:
    """Counts every folder of compiled things."""
    found = {kind: list(store.entries(kind)) for kind in store.COMPILED}
    return [Kept(str(store.root() / kind), len(kept), sum(entry.bytes for entry in kept)) for kind, kept in found.items()]


def to_json(kept: list[Kept]) -> dict[str, Any]:
    """The cache as `--json` prints it."""
    return {"limit": store.limit(), "folders": [vars(one) for one in kept]}


def table(kept: list[Kept]) -> None:
    """A line a folder, and what may be kept in all."""
    rows = lines("", "entries", "MiB", "folder", right=("entries", "MiB"))
    for what, one in zip(_HOLDS.values(), kept, strict=True):
        rows.add_row(*plain((what, one.entries, f"{one.bytes / 2**20:.1f}", one.folder)))
    out = console()
    out.print(rows)
    mebibytes = sum(one.bytes for one in kept) / 2**20
    beyond = "beyond that the ones used longest ago go (FLASHGEN_CACHE_SIZE)"
    out.print(*plain([f"{mebibytes:.1f} MiB of {store.limit() / 2**20:.0f}; {beyond}"]))
