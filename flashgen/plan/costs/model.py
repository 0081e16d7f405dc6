"""The numbers of the cost model: named, with units, a file a card.

An architecture takes the file that serves it, else that of the H100: clocks and instructions as they are, and what is computed, loaded or
stored at the rates of its own row of `flashgen.arch`. `benchmarks/fit.py` measures a card and writes its file.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from flashgen.arch import Arch

_OTHERS = "h100"  # the file of an arch that none serves, and of tables and numbers that a file does not have
_tried: dict[str, Mapping[str, float | list[float]]] = {}  # by strategy


@dataclass(frozen=True)
class Costs:
    """The numbers of one strategy on one card.

    >>> of_arch(by_name("sm_90a"), "wgmma")["exposed"]
    0.7
    """

    card: str  # that they were fitted on
    own: bool  # it is a card of the arch that is planned for
    numbers: Mapping[str, float | list[float]]

    def __getitem__(self, name: str) -> float:
        number = self.numbers[name]
        assert not isinstance(number, list), name
        return number

    def by_count(self, name: str, count: int) -> float:
        """A number that differs by how many there are of something, as warpgroups: 1 is the first."""
        number = self.numbers[name]
        assert isinstance(number, list), name
        return number[count - 1]

    @property
    def text(self) -> str:
        """The card, and how its numbers serve another, for people."""
        return f"fitted on {self.card}" if self.own else f"fitted on {self.card}; the rates are this architecture's"


def of_arch(arch: Arch, strategy: str) -> Costs:
    """The numbers by which a strategy compares its candidates on an architecture."""
    found = _of_name(arch.name, strategy)
    return replace(found, numbers=_tried[strategy]) if strategy in _tried else found


def reasons(arch: Arch, strategy: str) -> Iterator[tuple[str, str]]:
    """The reason that says by whose numbers a strategy compares its candidates; none of a strategy without a table."""
    if strategy:
        yield "cost", f"clocks by numbers {of_arch(arch, strategy).text}"


def cards() -> tuple[str, ...]:
    """The cards whose numbers are known, as their drivers name them."""
    return tuple(table["card"] for table in _tables().values())


@contextlib.contextmanager
def trying(strategy: str, numbers: Mapping[str, float | list[float]]) -> Iterator[None]:
    """Other numbers for a strategy, on every architecture, until the end of a `with`: what `benchmarks/fit.py` searches with."""
    _tried[strategy] = numbers
    try:
        yield
    finally:
        del _tried[strategy]


@cache
def _of_name(arch: str, strategy: str) -> Costs:
    own = next((table for table in _tables().values() if arch in table["serves"] and strategy in table), None)
    table = own or _tables()[_OTHERS]
    return Costs(
        card=table["card"],
        own=own is not None,
        numbers={name: entry["value"] for name, entry in (_tables()[_OTHERS][strategy] | table[strategy]).items()},
    )


@cache
def _tables() -> dict[str, dict[str, Any]]:
    """The files by name, those that serve no architecture too."""
    import tomllib  # only where something is planned

    return {path.stem: tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted(Path(__file__).parent.glob("*.toml"))}
