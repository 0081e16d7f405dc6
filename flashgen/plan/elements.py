"""An extent that the arrays of a call tell."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Elements:
    """The elements of a tensor of a call."""

    of: str  # its name
