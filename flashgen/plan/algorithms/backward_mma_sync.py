"""Planning the backward for mma.sync: a block takes one key tile of a key/value head, and all query tiles of its query heads pass by.

A warp multiplies its own query rows for s and dp, its own keys and columns for dk and dv. p and ds lie in shared memory in between.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from flashgen.expr import analyse
from flashgen.plan.costs import model as costs
from flashgen.plan.engines import limits
from flashgen.plan.engines.limits import FLOAT_BYTES, SCHEDULERS, SHARED_BYTES, up
from flashgen.plan.engines.mma_sync import LIST_REGISTERS, with_blocks
from flashgen.plan.kernel import DealingPlan, Grid, PipelinePlan, TilePlan, WorkersPlan
from flashgen.plan.kernels.arguments import (
    further_arguments,
    gradient_arguments,
    key_tiles,
    lse_arguments,
    query_tiles,
    section_argument,
    strides,
)
from flashgen.plan.kernels.delta import delta
from flashgen.plan.kernels.finish_queries import finish_queries
from flashgen.plan.kernels.key_lists import key_lists
from flashgen.plan.kernels.key_ranges import key_ranges
from flashgen.plan.program import Argument, Parts
from flashgen.plan.smem import lay_out
from flashgen.plan.strategy import BackwardStrategy, Draft, Problem, Request
from flashgen.spec import Spec

SHARED_FROM = 128  # columns, from which on two warps or more share the same keys: registers of one do not hold their gradients
FRAGMENTS = 208  # registers a thread that dk, dv, s, dp (an eighth more: as they become 16 bits) and what products read can have unspilled


class BackwardMmaSync(BackwardStrategy):
    """16-bit operands in arrays of any strides."""

    skeleton = "backward_sm80"
    engine = "mma_sync"
    costs = "mma_sync"
    walks_lists = True

    def serves(self, request: Request) -> str | None:
        """Refuses what is no backward of 16-bit operands for mma.sync."""
        return limits.unserved(request, engine=self.engine, operand="native", algorithm="backward")

    def check(self, problem: Problem) -> None:
        """Raises PlanError for head dims that no kernel has."""
        limits.check(problem)

    def drafts(self, problem: Problem) -> Iterator[Draft]:
        """Tiles, warps, and whether the next query tile loads beside the products of this one."""
        few = (1, 2) if problem.spec.blocks else ()  # for tiles of the few queries or keys that lists may have
        for warps, rows, keys, stages in product((*few, 4, 8), (1, 2), (16, 32, 64, 128), (1, 2)):
            yield _draft(problem, 16 * warps * rows, keys, warps, stages)

    def objection(self, problem: Problem, draft: Draft) -> str | None:
        """Sizes of products, registers."""
        tile, warps = draft.tile, draft.workers.warps
        columns = column_warps(tile, warps)
        if not columns:
            return f"{warps} warps cannot share {tile.block_n} keys and {tile.qk_columns} and {tile.v_columns} columns by 16 each"
        rows, threads = tile.block_m // (16 * warps), 32 * warps
        gradients = tile.block_n * (tile.qk_columns + tile.v_columns) // threads
        kept = max(gradients, rows * tile.qk_columns // 2 if problem.spec.deterministic else 0)
        registers = kept + 9 * rows * tile.block_n // 8 + 4 * (rows + 1) + (LIST_REGISTERS if problem.seen.listed else 0)
        if registers > FRAGMENTS:
            return f"s, dp, dk and dv take {registers} registers a thread, {FRAGMENTS} can be held"
        return None

    def cost(self, problem: Problem, draft: Draft) -> dict[str, float]:
        """Roofline of a query tile and a key tile."""
        tile, arch, warps = draft.tile, problem.arch, draft.workers.warps
        known, shared = costs.of_arch(arch, self.costs), column_warps(tile, warps)
        m, n, qk, v = tile.block_m, tile.block_n, tile.qk_columns, tile.v_columns
        mma_flops = min(arch.mma_flops, known["mma_flops"])
        of_rows = m * (qk + v) + warps * n * (2 * qk + v)  # q and do, then keys and values for each warp's rows
        of_keys = 2 * shared * m * n + warps // shared * m * (qk + v)
        step = {
            "tensor cores": 2 * m * n * (3 * qk + 2 * v) / mma_flops,
            "shared memory": 2 * (of_rows + of_keys + 2 * m * n) / SHARED_BYTES,
            "special functions": m * n * (problem.softmax.exponentials + problem.holes.score.instructions.special) / arch.exp2,
            "sums": FLOAT_BYTES * m * qk / known["sum_bytes"],
        }
        waits = sum(step.values()) - step["sums"]  # of the one warp of a scheduler: its products and exponentials follow each other
        step["one warp"] = SCHEDULERS * waits / (warps * draft.workers.blocks)
        alone = known["load_latency"] if draft.pipeline.stages == 1 else 0
        clocks = max(step.values()) + (known["step"] + 2 * known["barrier"] + alone) / draft.workers.blocks
        clocks *= known["lone_block"] if draft.workers.blocks == 1 else 1  # nobody multiplies while its warps wait for each other
        pairs = problem.seen.key_tiles(m, n)  # a query tile
        return {**step, "step": clocks, "total": pairs * clocks / m}

    def parts(self, problem: Problem, draft: Draft) -> Parts:
        """A block a key tile of a key/value head."""
        tile, alone = draft.tile, problem.spec.deterministic
        grid = Grid(draft.workers.threads, key_tiles(problem.spec, tile))
        kernel = replace(draft.backward(grid, problem), column_warps=column_warps(tile, draft.workers.warps))
        before = delta(problem.spec, tile, summed=not alone)
        parts = Parts((*before.kernels, kernel), (*_arrays(problem.spec), *before.arguments, *_others(problem.spec)), before.scratch)
        return _followed_by_queries(problem, draft, parts) if alone else parts.followed(finish_queries(problem.spec, tile))


def _followed_by_queries(problem: Problem, draft: Draft, parts: Parts) -> Parts:
    """The kernels before one more, which sums dq in the order of the keys: a block a query tile, with the tile and the places of theirs.
    Where tiles are listed, a small one between them turns the lists round."""
    tile = draft.tile
    ranges = analyse(problem.expressions.mask, tile.block_m, tile.block_n, problem.spec.tensors, problem.spec.geometry, problem.spec.params)
    dealing = DealingPlan(longest_first=not problem.seen.uniform, listed=problem.seen.listed)
    kernel = replace(draft, dealing=dealing).attention(
        "backward_queries", Grid(draft.workers.threads, query_tiles(problem.spec, tile)), ranges
    )
    kernel = replace(kernel, smem=replace(kernel.smem, regions=()))  # they are those of the other kernel
    last = Parts((kernel,), (section_argument(),))
    if problem.seen.listed:
        return parts.followed(last.preceded(key_lists(problem.spec, draft, early=False)))
    return parts.followed(last).preceded(key_ranges(ranges, early=False, pieces=1))


def column_warps(tile: TilePlan, warps: int) -> int:
    """The warps that share the same keys of dk and dv, each with its part of the columns; 0 if they cannot.

    Of all ways to share that in which a product reads least of shared memory.
    """
    columns = (tile.qk_columns, tile.v_columns)
    ways = (c for c in (1, 2, 4, 8) if c <= warps and not (tile.block_n * c) % (16 * warps) and not any(x % (16 * c) for x in columns))
    return min(ways, key=lambda c: c * tile.block_n + warps // c * sum(columns) // 2, default=0)


def _draft(problem: Problem, block_m: int, block_n: int, warps: int, stages: int) -> Draft:
    element, dims = problem.spec.element, problem.spec.head_dim
    shared = 2 if max(dims.qk, dims.v) > SHARED_FROM else 1  # warps that have each a part of the columns
    qk, v = up(dims.qk, shared * element.k_step), up(dims.v, shared * element.k_step)
    tile = TilePlan(block_m=block_m, block_n=block_n, qk_columns=qk, v_columns=v, qk_stored=qk, v_stored=v)
    pieces = (
        ("Q", "Q", block_m * qk * element.bytes, stages, 128),
        ("do", "DO", block_m * v * element.bytes, stages, 128),
        ("K", "K", block_n * qk * element.bytes, 1, 128),
        ("V", "V", block_n * v * element.bytes, 1, 128),
        ("p", "P", block_m * block_n * element.bytes, 1, 128),
        ("ds", "DS", block_m * block_n * element.bytes, 1, 128),
    )
    draft = Draft(
        tile=tile,
        workers=WorkersPlan(warps),
        pipeline=PipelinePlan(stages=stages, copy_bytes=problem.copy_bytes),
        smem=lay_out(pieces, [], problem.arch.shared_bytes),
        dealing=DealingPlan(),
    )
    return with_blocks(problem, draft)


def _arrays(spec: Spec) -> Iterator[Argument]:
    """The arrays that are read, then those that are written."""
    element = spec.element.cuda
    for x in ("q", "k", "v"):
        yield Argument(x, f"const {element}*", "pointer", x)
    yield Argument("o", f"const {spec.out_element.cuda}*", "pointer", "o")
    yield Argument("dout", f"const {element}*", "pointer", "do", comment="do: the gradient of o, of its layout")
    yield from lse_arguments(spec)
    for x in ("dq", "dk", "dv"):
        yield Argument(x, f"{element}*", "pointer", x)


def _others(spec: Spec) -> Iterator[Argument]:
    for name, of in (("q", "q"), ("k", "k"), ("v", "v"), ("o", "o"), ("dout", "do"), ("dq", "dq"), ("dk", "dk"), ("dv", "dv")):
        yield Argument(f"{name}_strides", strides(spec, of), "strides", of)
    yield from gradient_arguments(spec)
    yield from (argument for argument in further_arguments(spec) if argument.name != "section")
