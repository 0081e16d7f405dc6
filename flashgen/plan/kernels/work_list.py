"""The kernel that runs before an attention of sequences one behind the other whose keys blocks share: it lists how much work each has."""

from flashgen.plan.kernel import Grid, Kernel, SmemPlan
from flashgen.plan.program import Argument, Parts, Scratch

_COUNTS = 3  # pieces of work, rows of shares, rows that have some


def work_list(early: bool) -> Parts:
    """The kernel, one warp that looks at the lengths of all sequences, and the memory of the list. `early`: others start before it ends."""
    comment = "[3, B + 1]: pieces of work, rows of shares, and rows that have some, of the sequences before each, and of all"
    return Parts(
        (Kernel("work_list", Grid(32, (1,), early=early), SmemPlan()),),
        (Argument("work_list", "int*", "pointer", "work_list", comment=comment),),
        (Scratch("work_list", "int32", (_COUNTS, "ends")),),
    )
