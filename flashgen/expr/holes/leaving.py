"""The hole of `output`: what o becomes before it is written, and in a backward its slope and what the expression reads of gradients."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from flashgen.expr.holes.hoist import Body, Member
from flashgen.expr.holes.passes import Kernel, passed
from flashgen.expr.language.read import Expressions
from flashgen.expr.language.text import show

if TYPE_CHECKING:
    from flashgen.expr.holes.backward import OutputSlope
    from flashgen.spec import Spec


@dataclass(frozen=True, kw_only=True)
class LeavingHole:
    """The expression that o becomes before it is written.

    In scope of `body`: o, v_idx, members of Variant, and row, of which are members of OutputRow.
    """

    text: str  # as in the language
    row: tuple[Member, ...]  # what it needs of a query row
    body: Body
    apart: bool  # a kernel after the attention applies it, as o before it is an output too
    back: "OutputSlope | None" = None  # of a kernel that computes gradients


def leaving(expressions: Expressions, spec: "Spec", kernel: Kernel, backward: bool) -> LeavingHole | None:
    """The hole of a spec's `output`, if it has one."""
    if expressions.output is None:
        return None
    own = replace(kernel, hoist=kernel.hoist.leaving())
    body = own.hoist.body(passed(expressions.output, "output", own))
    back = _back(spec, own) if backward else None
    return LeavingHole(text=show(expressions.output), row=own.hoist.row_members(), body=body, apart=spec.kept != "o", back=back)


def _back(spec: "Spec", kernel: Kernel) -> "OutputSlope":
    from flashgen.expr.holes.backward import output_slope  # which no forward needs

    return output_slope(spec, kernel)
