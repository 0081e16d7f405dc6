"""The kernels of a program that write queries or keys anew, and bring their gradients back, as data."""

from dataclasses import dataclass

from flashgen.plan.kernel import Kernel
from flashgen.spec.embedding import LENGTHS


@dataclass(frozen=True, kw_only=True)
class ByToken(Kernel):
    """A kernel whose blocks have tokens, of queries or of keys."""

    role: str  # q or k
    lying: str  # the template of where sequences lie: apart, in arrays of their own, or one behind the other

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


@dataclass(frozen=True, kw_only=True)
class Embed(ByToken):
    """The kernel that writes queries or keys anew, after a norm and a rotary embedding: a block a token."""

    angle: str  # of a pair of a row's columns, as text; empty: nothing is turned


@dataclass(frozen=True, kw_only=True)
class Unembed(Embed):
    """The kernel that brings the gradient of what queries or keys become back to what a call gave: a block some tokens."""

    tokens: int  # of a block
    learned: str  # the name of learned columns whose gradient is asked for; empty: there is none
    exact: bool  # whether that is summed in integers, whose order is of no account
