"""Planning for schedules that pass over the keys several times, or divide o after every tile: the tiles and warps of sm80."""

from collections.abc import Iterator

from flashgen.plan import sm80
from flashgen.plan.limits import check
from flashgen.plan.search import NEVER, Draft, Problem
from flashgen.plan.sm80 import launch

__all__ = ["APART", "LAZY_FROM", "SHORTEST", "SKELETON", "check", "cost", "drafts", "launch", "objection"]

SKELETON = "passes_sm80"
LAZY_FROM = NEVER  # these schedules have no reference that may stay behind
APART = False
SHORTEST = 1024

NORMALIZED_FRAGMENTS = 160  # registers a thread of q, one and a half s, and o, where o is divided after every tile; fitted to what spills
LONE_BLOCK = 1.15  # clocks of the only block on a multiprocessor against those of two, where it passes more than once; measured


def drafts(problem: Problem) -> Iterator[Draft]:
    """Those of sm80 with a tile in flight besides the one that is multiplied."""
    return (draft for draft in sm80.drafts(problem) if problem.spec.stages is not None or draft.pipeline.stages > 1)


def objection(problem: Problem, draft: Draft) -> str | None:
    """What sm80 objects to, a single stage, and more registers."""
    tile, pipe = draft.tile, draft.pipeline
    if pipe.stages == 1:
        return f"stages is 1: 2 to {sm80.MAX_STAGES} with this schedule, which loads a key tile while it multiplies another"
    if found := sm80.objection(problem, draft):
        return found
    q = tile.qk_columns // 4 + sm80.QUERY_MARGIN if pipe.query_in_registers else 4
    return held_while_divided(draft, q) if problem.softmax.normalize == "each_step" else None


def held_while_divided(draft: Draft, q: int) -> str | None:
    """Why a thread cannot hold q (registers of 16 rows), s and o where o is divided after every tile, or None."""
    tile, pipe = draft.tile, draft.pipeline
    held = tile.block_m // (16 * pipe.warps) * (q + 0.75 * tile.block_n + tile.v_columns / 2)
    if held <= NORMALIZED_FRAGMENTS:
        return None
    return f"q, s and o take {held:.0f} registers a thread, {NORMALIZED_FRAGMENTS} can be held while o is divided after every tile"


def cost(problem: Problem, draft: Draft) -> dict[str, float]:
    """That of sm80, a pass."""
    found = sm80.cost(problem, draft)
    alone = problem.softmax.passes > 1 and draft.pipeline.blocks == 1
    return found | {"total": found["total"] * (LONE_BLOCK if alone else 1)}
