"""Planning for FlashAttention 1: key tiles in the outer loop, and (m, l, o) of every query row read and written for each of them."""

from collections.abc import Iterator
from dataclasses import replace

from flashgen.expr import KeyRanges
from flashgen.plan.algorithms.passes import held_while_divided
from flashgen.plan.engines import limits
from flashgen.plan.engines.mma_sync import MmaSync, native_arguments
from flashgen.plan.kernel import DealingPlan, Grid
from flashgen.plan.program import Argument, Parts, Scratch
from flashgen.plan.strategy import NEVER, Draft, Problem, Request

QUERY_TILES = 4  # of a block: a key tile is loaded once for so many, and more blocks than heads are at work


class KeysOuter(MmaSync):
    """The keys in the outer loop; o is divided after every tile."""

    skeleton = "keys_outer_sm80"
    lazy_from = NEVER
    walks_lists = False

    def serves(self, request: Request) -> str | None:
        """Refuses other schedules than keys in the outer loop."""
        return limits.unserved(request, engine=self.engine, operand="native", algorithm="keys_outer")

    def check(self, problem: Problem) -> None:
        """Raises PlanError for head dims that no kernel has."""
        limits.check(problem)

    def drafts(self, problem: Problem) -> Iterator[Draft]:
        """Tiles and warps of mma_sync; one key tile and one query tile in shared memory, which changes at every step."""
        for draft in super().drafts(problem.with_stages(1)):
            if not draft.pipeline.query_in_registers:
                yield replace(draft, tile=replace(draft.tile, query_tiles=QUERY_TILES), dealing=DealingPlan())

    def objection(self, problem: Problem, draft: Draft) -> str | None:
        """Several stages, what mma_sync objects to, and more registers than o, s and their factors have."""
        if (stages := draft.pipeline.stages) != 1:
            return f"stages is {stages}: 1 with outer: kv, whose key tile stays while query tiles pass by"
        more = problem.holes.outputs.registers(draft.tile.block_n, draft.tile.v_columns)
        return super().objection(problem, draft) or held_while_divided(draft, 4 + more)

    def parts(self, problem: Problem, draft: Draft, ranges: KeyRanges) -> Parts:
        """A block takes QUERY_TILES query tiles of a head."""
        spec, tile = problem.spec, draft.tile
        sums = [statistic.name for statistic in problem.holes.outputs.statistics]
        arguments = native_arguments(
            spec,
            Argument("o_state", "float*", "pointer", "state o", comment="[B, Hq, rows of whole tiles, V_COLUMNS]"),
            Argument("max_state", "float*", "pointer", "state m", comment="[B, Hq, rows of whole tiles]"),
            Argument("sum_state", "float*", "pointer", "state l", comment="like max_state"),
            *(Argument(f"{name}_state", "float*", "pointer", f"state {name}", comment="like max_state") for name in sums),
        )
        rows = ("batch", "heads", ("q_len", tile.block_m), tile.block_m)
        scratch = (
            Scratch("state o", "float32", (*rows, tile.v_columns)),
            Scratch("state m", "float32", rows),
            Scratch("state l", "float32", rows),
            *(Scratch(f"state {name}", "float32", rows) for name in sums),
        )
        blocks = (("q_len", tile.block_m * tile.query_tiles), "heads", "batch")
        return Parts((draft.attention("forward", Grid(draft.workers.threads, blocks), ranges),), arguments, scratch)
