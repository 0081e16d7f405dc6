"""Planning for FlashAttention 1: key tiles in the outer loop, and (m, l, o) of every query row read and written for each of them."""

from collections.abc import Iterator
from dataclasses import replace

from flashgen.plan import sm80
from flashgen.plan.arguments import further_arguments, row_arguments
from flashgen.plan.limits import check
from flashgen.plan.model import Argument, KernelPlan, LaunchPlan, Scratch, SmemPlan
from flashgen.plan.passes import APART, LAZY_FROM, SHORTEST, held_while_divided
from flashgen.plan.search import Draft, Problem
from flashgen.plan.sm80 import cost
from flashgen.spec import Spec

__all__ = ["APART", "LAZY_FROM", "SHORTEST", "SKELETON", "check", "cost", "drafts", "launch", "objection"]

SKELETON = "keys_outer_sm80"

QUERY_TILES = 4  # of a block: a key tile is loaded once for so many, and more blocks than heads are at work


def drafts(problem: Problem) -> Iterator[Draft]:
    """Tiles and warps of sm80; one key tile and one query tile in shared memory, which changes at every step."""
    one = replace(problem, spec=Spec(**(problem.spec.to_json() | {"stages": problem.spec.stages or 1})))
    for draft in sm80.drafts(one):
        if not draft.pipeline.query_in_registers:
            yield replace(draft, tile=replace(draft.tile, query_tiles=QUERY_TILES))


def objection(problem: Problem, draft: Draft) -> str | None:
    """What sm80 objects to, several stages, and more registers than o, s and their factors have."""
    if (stages := draft.pipeline.stages) != 1:
        return f"stages is {stages}: 1 with outer: kv, whose key tile stays while query tiles pass by"
    if found := sm80.objection(problem, draft):
        return found
    return held_while_divided(draft, 4)


def launch(problem: Problem, draft: Draft) -> LaunchPlan:
    """A block takes QUERY_TILES query tiles of a head."""
    spec, tile = problem.spec, draft.tile
    assert isinstance(draft.smem, SmemPlan)
    arguments = (
        *(Argument(x, "const u16*", "pointer", x) for x in ("q", "k", "v")),
        Argument("o", f"{spec.out_element.cuda}*", "pointer", "o"),
        *row_arguments(spec),
        Argument("o_state", "float*", "pointer", "state o", comment="[B, Hq, rows of whole tiles, V_COLUMNS]"),
        Argument("max_state", "float*", "pointer", "state m", comment="[B, Hq, rows of whole tiles]"),
        Argument("sum_state", "float*", "pointer", "state l", comment="like max_state"),
        *(Argument(f"{x}_strides", "Strides", "strides", x) for x in ("q", "k", "v", "o")),
        *further_arguments(spec),
    )
    rows = ("batch", "heads", ("q_len", tile.block_m), tile.block_m)
    scratch = (
        Scratch("state o", "float32", (*rows, tile.v_columns)),
        Scratch("state m", "float32", rows),
        Scratch("state l", "float32", rows),
    )
    blocks = (("q_len", tile.block_m * tile.query_tiles), "heads", "batch")
    kernel = KernelPlan("forward", 32 * draft.pipeline.warps, draft.smem.bytes, blocks)
    return LaunchPlan((kernel,), False, False, arguments, scratch)
