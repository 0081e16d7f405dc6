"""The numbers of the cost model: named, with units, a file a card.

An architecture takes the file of its own card, else that of the H100: clocks and instructions as they are, and what is computed, loaded or
stored at the rates of its own row of `flashgen.arch`.
"""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from flashgen.arch import Arch

_OWN: dict[str, str] = {"sm_90": "h100", "sm_90a": "h100"}  # file by arch
_OTHERS = "h100"  # of an arch that has none


@dataclass(frozen=True)
class Costs:
    """The numbers of one strategy on one card.

    >>> of_arch(by_name("sm_90a"), "wgmma")["exposed"]
    0.7
    """

    card: str  # that they were fitted on
    own: bool  # it is a card of the arch that is planned for
    numbers: dict[str, float | list[float]]

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
    return _of_name(arch.name, strategy)


@cache
def _of_name(arch: str, strategy: str) -> Costs:
    table = _read(_OWN.get(arch, _OTHERS))
    return Costs(
        card=table["card"],
        own=arch in _OWN,
        numbers={name: entry["value"] for name, entry in table[strategy].items()},
    )


@cache
def _read(file: str) -> dict[str, Any]:
    return tomllib.loads((files("flashgen.plan.costs") / f"{file}.toml").read_text(encoding="utf-8"))
