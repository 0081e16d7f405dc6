"""Planning for sm_80 and later, and for arrays that TMA cannot address.

A block takes one query tile; each of its warps copies (cp.async) and multiplies (mma.sync).
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product

from flashgen.errors import PlanError
from flashgen.plan import limits
from flashgen.plan.arguments import further_arguments, query_tiles, row_arguments
from flashgen.plan.limits import up, v_splits
from flashgen.plan.model import Argument, KernelPlan, LaunchPlan, PipelinePlan, SmemPlan, TilePlan
from flashgen.plan.search import Draft, Problem
from flashgen.plan.smem import lay_out

__all__ = ["APART", "LAZY_FROM", "SHORTEST", "SKELETON", "check", "cost", "drafts", "launch", "objection"]

SKELETON = "forward_sm80"
# p stays below 2^8, exact in float16 and bfloat16. A warp's step of 128x64 executes 770 instead of 880 instructions at head dim 128, 594
# instead of 634 at 64, and no fewer at 32.
LAZY_FROM: tuple[float, float] = (33, 33)
APART = False
SHORTEST = 1024

MAX_WARPS, MAX_KEYS, MAX_STAGES = 8, 256, 4
RESIDENT_WARPS = 8  # of a multiprocessor: two a scheduler, one multiplies while the other computes; their threads can have 255 registers
RESERVED_BYTES = 1024  # of shared memory, the system's, a block

# Registers a thread, fitted to what the compiler spills.
FRAGMENTS = 208  # of q, s, p and o in a product
SOFTMAX_FRAGMENTS = 280  # in between, when s counts more: its exponentials and p come to be
SOFTMAX_SCORES = 2.25
QUERY_MARGIN = 8  # more of 16 rows, when q stays in registers
HOLE_REGISTERS = 24  # more where every element of s reads arrays

# Clocks, estimates: the tiles that they choose were held against every legal one, timed (benchmarks/NOTES.md).
MMA_SYNC_FLOPS = 2048  # at most, where wgmma has more
LONE_WARP = 2.5  # an instruction, for the one warp that a scheduler runs while others wait
LATENCY = 100  # of a key step of a block that nothing hides,
LOAD_LATENCY = 500  # and when its loads have half a step
STEP = 150  # start and end of two products
BARRIER = 160  # a barrier of the only block on a multiprocessor; others fill most of the wait
QUERY_TILE = 1500  # start and end of 128 query rows


def check(problem: Problem) -> None:
    """Raises PlanError for head dims and schedules that no kernel has."""
    limits.check(problem, limits.MAX_SPLIT)
    v, splits = problem.spec.head_dim.v, v_splits(problem.spec)
    if v % (8 * splits):
        raise PlanError(
            f"head_dim v is {v}: {splits} blocks share its columns on {problem.arch.name}, so it takes multiples of {8 * splits}"
        )


def drafts(problem: Problem) -> Iterator[Draft]:
    """Tiles, warps, stages, and whether q stays in registers."""
    spec = problem.spec
    rows = choices(spec.block.m, (64, 128) if spec.warps is None else (16 * spec.warps, 32 * spec.warps))
    keys = choices(spec.block.n, (16, 32, 48, 64, 96, 128))
    warps = choices(spec.warps, (4, 8) if spec.block.m is None else range(1, MAX_WARPS + 1))
    stages = choices(spec.stages, (1, 2, 3))
    for block_m, block_n, w, n, kept in product(rows, keys, warps, stages, (True, False)):
        yield _draft(problem, block_m, block_n, w, n, kept)


def choices(pinned: int | None, usual: Iterable[int]) -> Iterable[int]:
    """What the spec pins, else the usual values."""
    return usual if pinned is None else (pinned,)


def _draft(problem: Problem, block_m: int, block_n: int, warps: int, stages: int, kept: bool) -> Draft:
    splits = v_splits(problem.spec)
    qk, v = up(problem.spec.head_dim.qk, 16), up(problem.spec.head_dim.v // splits, 16)
    tile = TilePlan(block_m, block_n, qk, v, qk, v, v_splits=splits)
    pipeline = PipelinePlan(stages, warps, query_in_registers=kept, copy_bytes=problem.copy_bytes)
    q_bytes, k_bytes, v_bytes = block_m * max(qk, v) * 2, block_n * qk * 2, block_n * v * 2
    pieces = [("Q", "Q", q_bytes, 1, 128), ("K", "K", k_bytes, stages, 128), ("V", "V", v_bytes, stages, 128)]
    smem = lay_out(pieces, [], problem.arch.shared_bytes, [[("O", "O", q_bytes, 1, 128)]])
    return with_blocks(problem, Draft(tile, pipeline, smem))


def with_blocks(problem: Problem, draft: Draft) -> Draft:
    """The draft with as many blocks on a multiprocessor as its shared memory and RESIDENT_WARPS allow."""
    if isinstance(draft.smem, str):
        return draft
    by_shared = problem.arch.multiprocessor_shared_bytes // (draft.smem.bytes + RESERVED_BYTES)
    return replace(draft, pipeline=replace(draft.pipeline, blocks=max(1, min(by_shared, RESIDENT_WARPS // draft.pipeline.warps))))


def objection(problem: Problem, draft: Draft) -> str | None:
    """Sizes of products, warps, stages, registers."""
    tile, pipe = draft.tile, draft.pipeline
    if not 1 <= pipe.warps <= MAX_WARPS:
        return f"warps is {pipe.warps}: 1 to {MAX_WARPS}"
    if tile.block_m < 1 or tile.block_m % (16 * pipe.warps):
        return f"block m is {tile.block_m}: each of {pipe.warps} warps takes 16 rows or more, so a multiple of {16 * pipe.warps}"
    if tile.block_n % 16 or not 16 <= tile.block_n <= MAX_KEYS:
        return f"block n is {tile.block_n}: a product takes 16 keys, so a multiple of 16 up to {MAX_KEYS}"
    if not 1 <= pipe.stages <= MAX_STAGES:
        return f"stages is {pipe.stages}: 1 to {MAX_STAGES}"
    rows, s, o = _rows(draft), tile.block_n // 2, tile.v_columns // 2
    q = tile.qk_columns // 4 + QUERY_MARGIN if pipe.query_in_registers else 4
    holes = problem.holes
    read = holes.read_registers(tile.block_n) + (HOLE_REGISTERS if holes.gathers or holes.reads else 0)
    product, softmax = (rows * (q + x + o) + read for x in (s, SOFTMAX_SCORES * s))
    if product > FRAGMENTS:
        return f"q, s and o take {product:.0f} registers a thread, {FRAGMENTS} can be held"
    if softmax > SOFTMAX_FRAGMENTS:
        return f"softmax takes {softmax:.0f} registers a thread, {SOFTMAX_FRAGMENTS} can be held"
    return None


def _rows(draft: Draft) -> int:
    """16-row tiles of a warp."""
    return draft.tile.block_m // (16 * draft.pipeline.warps)


def cost(problem: Problem, draft: Draft) -> dict[str, float]:
    """Roofline of a key step, and what surrounds it."""
    tile, pipe, arch = draft.tile, draft.pipeline, problem.arch
    m, n, columns, rows, blocks = tile.block_m, tile.block_n, tile.qk_columns + tile.v_columns, _rows(draft), pipe.blocks
    mma_flops = min(arch.mma_flops, MMA_SYNC_FLOPS)
    query = 0 if pipe.query_in_registers else tile.qk_columns
    score = problem.holes.instructions
    rescale = tile.v_columns / (16 if problem.softmax.rescale == "lazy" else 2)
    products = rows * n * columns / 128
    loads = n * columns / 256 + rows * query / 16 + n * columns / (pipe.warps * 8 * problem.copy_bytes)
    others = loads + rows * (n / 2 * (4.75 + score.floats) + rescale) + 70
    one_warp = products * 4 * 4096 / mma_flops + others * LONE_WARP + LATENCY + (LOAD_LATENCY if pipe.stages == 1 else 0)
    step = {
        "tensor cores": 2 * m * n * columns / mma_flops,
        "special functions": m * n * (problem.softmax.exponentials + score.special) / arch.exp2,
        "instructions": (products + others) * pipe.warps / 4,
        "shared memory": ((pipe.warps + 1) * n * columns + m * query) * 2 / 128,
        "one warp": one_warp / blocks,  # its products and exponentials follow each other
    }
    clocks = max(step.values()) + STEP + BARRIER * (2 if pipe.stages == 1 else 1) / blocks**2
    total = (problem.key_tiles(m, n) + 1 / blocks) * clocks + QUERY_TILE * m / 128 / blocks
    return {**step, "step": clocks, "total": total * tile.v_splits * up(problem.length, m) / problem.length / m}


def launch(problem: Problem, draft: Draft) -> LaunchPlan:
    """A block a query tile."""
    arguments = (
        *(Argument(x, "const u16*", "pointer", x) for x in ("q", "k", "v")),
        Argument("o", f"{problem.spec.out_element.cuda}*", "pointer", "o"),
        *row_arguments(problem.spec),
        *(Argument(f"{x}_strides", "Strides", "strides", x) for x in ("q", "k", "v", "o")),
        *further_arguments(problem.spec),
    )
    assert isinstance(draft.smem, SmemPlan)
    kernel = KernelPlan("forward", 32 * draft.pipeline.warps, draft.smem.bytes, query_tiles(draft.tile))
    return LaunchPlan((kernel,), False, not problem.uniform, arguments)
