"""`flashgen cache`: lists the compiled things that are kept, their size and their place."""

from dataclasses import dataclass
from typing import Any

from flashgen import store
from flashgen.cli.terminal import console, plain
from flashgen.cli.terminal import table as lines

_HOLDS = {"kernels": "kernels by NVRTC", "emulate": "kernels for the CPU by the C++ compiler"}


@dataclass(frozen=True)
class Held:
    """The number of entries in one folder of the cache, and their size."""

    folder: str
    entries: int
    bytes: int


def look() -> list[Held]:
    """Counts every folder of compiled things."""
    found = {kind: list(store.entries(kind)) for kind in store.COMPILED}
    return [Held(str(store.root() / kind), len(held), sum(entry.bytes for entry in held)) for kind, held in found.items()]


def to_json(held: list[Held]) -> dict[str, Any]:
    """The cache as `--json` prints it."""
    return {"limit": store.limit(), "folders": [vars(one) for one in held]}


def table(held: list[Held]) -> None:
    """A line a folder, and what may be kept in all."""
    rows = lines("", "entries", "MiB", "folder", right=("entries", "MiB"))
    for what, one in zip(_HOLDS.values(), held, strict=True):
        rows.add_row(*plain((what, one.entries, f"{one.bytes / 2**20:.1f}", one.folder)))
    out = console()
    out.print(rows)
    kept = sum(one.bytes for one in held) / 2**20
    beyond = "beyond that the ones used longest ago go (FLASHGEN_CACHE_SIZE)"
    out.print(*plain([f"{kept:.1f} MiB of {store.limit() / 2**20:.0f}; {beyond}"]))
