"""The kernel that looks at each pair of a query and a key, where the ranges of a mask do not tell which key tiles are seen."""

from dataclasses import dataclass

from flashgen.expr import Holes
from flashgen.plan.kernel import Kernel


@dataclass(frozen=True, kw_only=True)
class Look(Kernel):
    """A kernel that evaluates the mask before the attention."""

    mask: Holes  # those of the mask alone
