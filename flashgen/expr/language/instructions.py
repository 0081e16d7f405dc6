"""The cost of an operation: instructions of the special function unit, multiplies and adds of floats, and all others."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Instructions:
    """Numbers of instructions; half of one is computed once for two rows."""

    special: float = 0  # MUFU
    multiply: float = 0  # FFMA, FMUL, FADD
    other: float = 0  # of integers, comparisons, choices, reads

    def __add__(self, more: "Instructions") -> "Instructions":
        return Instructions(self.special + more.special, self.multiply + more.multiply, self.other + more.other)

    def times(self, count: float) -> "Instructions":
        """So many times these instructions."""
        return Instructions(self.special * count, self.multiply * count, self.other * count)

    @property
    def floats(self) -> float:
        """The number of floating-point instructions."""
        return self.special + self.multiply

    @property
    def all(self) -> float:
        """The number of all instructions."""
        return self.floats + self.other
