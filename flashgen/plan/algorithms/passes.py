"""Planning for schedules that pass over the keys several times, or divide o after every tile: the tiles and warps of mma_sync."""

from collections.abc import Iterator

from flashgen.plan.costs import model as costs
from flashgen.plan.engines import limits
from flashgen.plan.engines.mma_sync import MAX_STAGES, QUERY_MARGIN, MmaSync
from flashgen.plan.strategy import NEVER, Draft, Problem, Request

NORMALIZED_FRAGMENTS = 160  # registers a thread of q, one and a half s, and o, where o is divided after every tile; fitted to what spills


class Passes(MmaSync):
    """Schedules without a reference that may stay behind."""

    skeleton = "passes_sm80"
    lazy_from = NEVER
    walks_lists = False

    def serves(self, request: Request) -> str | None:
        """Refuses other schedules than several passes."""
        return limits.unserved(request, engine=self.engine, operand="native", algorithm="passes")

    def check(self, problem: Problem) -> None:
        """Raises PlanError for head dims that no kernel has."""
        limits.check(problem)

    def drafts(self, problem: Problem) -> Iterator[Draft]:
        """Those of mma_sync with a tile in flight besides the one that is multiplied."""
        return (draft for draft in super().drafts(problem) if problem.spec.stages is not None or draft.pipeline.stages > 1)

    def objection(self, problem: Problem, draft: Draft) -> str | None:
        """A single stage, what mma_sync objects to, and more registers."""
        tile, pipe = draft.tile, draft.pipeline
        if pipe.stages == 1:
            return f"stages is 1: 2 to {MAX_STAGES} with this schedule, which loads a key tile while it multiplies another"
        if found := super().objection(problem, draft):
            return found
        q = tile.qk_columns // 4 + QUERY_MARGIN if pipe.query_in_registers else 4
        q += problem.holes.outputs.registers(tile.block_n, tile.v_columns)
        return held_while_divided(draft, q) if problem.softmax.normalize == "each_step" else None

    def cost(self, problem: Problem, draft: Draft) -> dict[str, float]:
        """That of mma_sync, a pass."""
        found = super().cost(problem, draft)
        alone = problem.softmax.passes > 1 and draft.workers.blocks == 1
        times = costs.of_arch(problem.arch, self.costs)["lone_block"] if alone else 1
        return found | {"total": found["total"] * times}


def held_while_divided(draft: Draft, q: int) -> str | None:
    """The reason why a thread cannot hold q (registers of 16 rows), s and o where o is divided after every tile, or None."""
    tile, warps = draft.tile, draft.workers.warps
    held = tile.block_m // (16 * warps) * (q + 0.75 * tile.block_n + tile.v_columns / 2)
    if held <= NORMALIZED_FRAGMENTS:
        return None
    return f"q, s and o take {held:.0f} registers a thread, {NORMALIZED_FRAGMENTS} can be held while o is divided after every tile"
