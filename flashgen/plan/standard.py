"""Planning for standard attention: scores and probabilities in global memory, three kernels with the tiles and warps of sm80."""

from collections.abc import Iterator
from dataclasses import replace

from flashgen.plan import sm80
from flashgen.plan.arguments import further_arguments, query_tiles, row_arguments
from flashgen.plan.limits import check
from flashgen.plan.model import Argument, KernelPlan, LaunchPlan, Scratch, SmemPlan
from flashgen.plan.passes import objection
from flashgen.plan.search import NEVER, Draft, Problem
from flashgen.plan.sm80 import cost
from flashgen.plan.smem import lay_out
from flashgen.spec import Spec

__all__ = ["APART", "LAZY_FROM", "SHORTEST", "SKELETON", "check", "cost", "drafts", "launch", "objection"]

SKELETON = "standard_sm80"
LAZY_FROM = NEVER  # the maximum of a row is known before its exponentials
APART = False
SHORTEST = 1024


def drafts(problem: Problem) -> Iterator[Draft]:
    """Tiles and warps of sm80, two stages; a block multiplies one tile of s, so q stays in shared memory."""
    two = replace(problem, spec=Spec(**(problem.spec.to_json() | {"stages": problem.spec.stages or 2})))
    for draft in sm80.drafts(two):
        if not draft.pipeline.query_in_registers:
            yield sm80.with_blocks(problem, replace(draft, smem=_smem(problem, draft)))


def _smem(problem: Problem, draft: Draft) -> SmemPlan | str:
    """One map for all kernels: q and k for s, p and v for o."""
    tile, stages = draft.tile, draft.pipeline.stages
    pieces = [
        ("Q", "Q", tile.block_m * max(tile.qk_columns, tile.v_columns) * 2, 1, 128),
        ("K", "K", tile.block_n * tile.qk_columns * 2, 1, 128),
        ("P", "P", tile.block_m * tile.block_n * 2, stages, 128),
        ("V", "V", tile.block_n * tile.v_columns * 2, stages, 128),
    ]
    return lay_out(pieces, [], problem.arch.shared_bytes, [("O", "O", "Q")])


def launch(problem: Problem, draft: Draft) -> LaunchPlan:
    """A block a tile of s, a warp a row of p, a block a tile of o."""
    spec, tile, threads = problem.spec, draft.tile, 32 * draft.pipeline.warps
    assert isinstance(draft.smem, SmemPlan)
    arguments = (
        *(Argument(x, "const u16*", "pointer", x) for x in ("q", "k", "v")),
        Argument("o", f"{spec.out_element.cuda}*", "pointer", "o"),
        *row_arguments(spec),
        Argument("s", "float*", "pointer", "scratch s", comment="[B, Hq, rows of whole tiles, columns of whole tiles]"),
        Argument("p", "u16*", "pointer", "scratch p", comment="like s"),
        *(Argument(f"{x}_strides", "Strides", "strides", x) for x in ("q", "k", "v", "o")),
        *further_arguments(spec),
    )
    pairs = (("q_len", tile.block_m), tile.block_m, ("kv_len", tile.block_n), tile.block_n)
    scratch = tuple(Scratch(f"scratch {x}", dtype, ("batch", "heads", *pairs)) for x, dtype in (("s", "float32"), ("p", spec.dtype)))
    kernels = (
        KernelPlan("scores", threads, draft.smem.bytes, (*query_tiles(tile), ("kv_len", tile.block_n))),
        KernelPlan("probabilities", threads, 0, (("q_len", draft.pipeline.warps), "heads", "batch")),
        KernelPlan("output", threads, draft.smem.bytes, query_tiles(tile)),
    )
    return LaunchPlan(kernels, False, False, arguments, scratch)
