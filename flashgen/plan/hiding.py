"""The choice of what a mask hides in key tiles that test it, and of how it is asked."""

from dataclasses import replace

from flashgen.expr import Holes, KeyRanges
from flashgen.expr.holes.columns import in_columns
from flashgen.plan.strategy import Draft, Problem


def hidden(problem: Problem, draft: Draft, ranges: KeyRanges) -> Holes:
    """The holes of a kernel that the mask tells what it hides.

    Scores, before their maximum; or exponents, beside the special function unit, for which exponentials wait: then all scores are asked
    whether a maximum rises, and few are above it that nobody sees. That is where warps load for others, many key tiles test the mask, and a
    maximum may grow by a threshold before anybody minds. There it is asked by bits of a thread's columns, where that is fewer instructions.
    """
    found = problem.holes
    many = found.mask.bits or problem.seen.listed == "mask" or all(loop.masked for loop in ranges.loops)
    if not (many and draft.workers.load_warps and problem.softmax.threshold):
        return found
    columns = in_columns(found.mask.body, found.reads, draft.tile.block_n) if found.score.body is None else ""
    return replace(found, mask=replace(found.mask, hides="exponents", columns=columns))
