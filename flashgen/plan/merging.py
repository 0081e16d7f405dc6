"""The kernel that merges attention over some keys with attention over others: what it is made for, and what it is given."""

from dataclasses import dataclass
from functools import cached_property

from flashgen.dtypes import DType, by_name
from flashgen.plan.program import Argument

_GIVEN = {"o_a": "const {}*", "o_b": "const {}*", "o": "{}*"}
_ROWS = {"lse_a": "const float*", "lse_b": "const float*", "lse": "float*"}
SCALARS = {"rows": "of all sequences and heads", "queries": "of a sequence", "heads": ""}


@dataclass(frozen=True, kw_only=True)
class MergePlan:
    """A kernel for states of one dtype and head dim, on one architecture."""

    arch: str
    dtype: str  # of o
    columns: int  # of o
    warps: int = 4  # of a block, each with a row
    entry: str = "merge"

    @property
    def element(self) -> DType:
        """The row of `dtype`."""
        return by_name(self.dtype)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

    @property
    def text(self) -> str:
        """The kernel in words."""
        return f"o_a, o_b [B, Sq, Hq, {self.columns}], {self.dtype}, and lse_a, lse_b [B, Hq, Sq] become o and lse over the keys of both"

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        """The members of Params."""
        found = [Argument(name, text.format(self.element.cuda), "pointer", name) for name, text in _GIVEN.items()]
        found += [Argument(name, text, "pointer", name, comment="natural log; -inf: no keys") for name, text in _ROWS.items()]
        found += [Argument(f"{name}_strides", "Strides", "strides", name) for name in (*_GIVEN, *_ROWS)]
        return (*found, *(Argument(name, "int", "scalar", name, comment=comment) for name, comment in SCALARS.items()))
