"""The kernel of a program that writes queries or keys anew, as data."""

from dataclasses import dataclass

from flashgen.plan.kernel import Kernel
from flashgen.spec.embedding import LENGTHS


@dataclass(frozen=True, kw_only=True)
class Embed(Kernel):
    """The kernel that writes queries or keys anew, after a norm and a rotary embedding: a block a token."""

    role: str  # q or k
    lying: str  # the template of where sequences lie: apart, in arrays of their own, or one behind the other
    angle: str  # of a pair of a row's columns, as text; empty: nothing is turned

    @property
    def length(self) -> str:
        """The length that its array has."""
        return LENGTHS[self.role]

    @property
    def rows(self) -> str:
        """The rows of its array that are a sequence's, where they lie one behind the other."""
        return {"q": "queries", "k": "keys"}[self.role]

    @property
    def heads(self) -> str:
        """The heads of its array."""
        return {"q": "p.heads", "k": "p.heads / p.group"}[self.role]
