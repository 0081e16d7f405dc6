"""Planning for schedules that pass over the keys several times, or divide o after every tile: the tiles and warps of sm80."""

from collections.abc import Iterator

from flashgen.plan import sm80
from flashgen.plan.limits import check
from flashgen.plan.search import Draft, Problem
from flashgen.plan.sm80 import cost, launch
from flashgen.spec import Spec

__all__ = ["SKELETON", "check", "cost", "drafts", "launch", "objection", "rescale"]

SKELETON = "passes_sm80"


def rescale(spec: Spec) -> tuple[str, float]:  # noqa: ARG001
    """These schedules have no reference that may stay behind."""
    return "always", 0.0


def drafts(problem: Problem) -> Iterator[Draft]:
    """Those of sm80 with a tile in flight besides the one that is multiplied."""
    return (draft for draft in sm80.drafts(problem) if problem.spec.stages is not None or draft.pipeline.stages > 1)


def objection(problem: Problem, draft: Draft) -> str | None:
    """What sm80 objects to, and a single stage."""
    if draft.pipeline.stages == 1:
        return f"stages is 1: 2 to {sm80.MAX_STAGES} with this schedule, which loads a key tile while it multiplies another"
    return sm80.objection(problem, draft)
